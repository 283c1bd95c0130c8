//! What the machine builds, and what it refuses.

use super::*;
use crate::{Limits, TraceError};

fn error(bytes: &[u8]) -> TraceError {
    parse(bytes, &Limits::default()).expect_err("a pickle that is not accepted")
}

/// The root in words, two levels deep.
fn shown(bytes: &[u8]) -> String {
    let pickle = parse(bytes, &Limits::default()).unwrap();
    match pickle.root().view() {
        View::List(items) | View::Tuple(items) => format!("{:?}", items.collect::<Vec<_>>()),
        View::Dict(pairs) => format!("{:?}", pairs.collect::<Vec<_>>()),
        other => format!("{other:?}"),
    }
}

#[test]
fn scalars_are_what_python_wrote() {
    assert_eq!(shown(b"\x80\x04N."), "None");
    assert_eq!(shown(b"\x80\x04\x88."), "Bool(true)");
    assert_eq!(shown(b"\x80\x04J\xff\xff\xff\xff."), "Int(-1)");
    assert_eq!(shown(b"\x80\x04M\x00\x01."), "Int(256)");
    assert_eq!(shown(b"\x80\x04\x8a\x00."), "Int(0)");
    // Short and long integers, at the end of the file and before it.
    assert_eq!(shown(b"\x80\x04\x8a\x02\x00\x80."), "Int(-32768)");
    assert_eq!(shown(b"\x80\x04\x8a\x02\x00\x80NNNNNNN0000000."), "Int(-32768)");
    assert_eq!(
        shown(b"\x80\x04\x8a\x06\0\0\0\0\0\x7fNNNNNNN0000000."),
        format!("Int({})", 0x7f00_0000_0000u64)
    );
    assert_eq!(shown(b"\x80\x04\x8a\x08\0\0\0\0\0\0\0\x80."), format!("Int({})", i64::MIN));
    assert_eq!(shown(b"\x80\x04\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0."), format!("Int({})", u64::MAX));
    assert_eq!(shown(b"\x80\x04\x8b\x08\0\0\0\0\0\0\0\0\0\0\x40."), format!("Int({})", 1i64 << 62));
    assert_eq!(shown(b"\x80\x04G?\xf8\0\0\0\0\0\0."), "Float(1.5)");
    assert_eq!(shown(b"\x80\x04\x8c\x02hi."), "Str([104, 105])");
    assert_eq!(shown(b"\x80\x04\x8d\x01\0\0\0\0\0\0\0x."), "Str([120])");
    assert_eq!(shown(b"\x80\x05\x96\x01\0\0\0\0\0\0\0x."), "Bytes([120])");
}

#[test]
fn integers_of_more_than_64_bits_are_refused() {
    for bytes in [
        &b"\x8a\x09\0\0\0\0\0\0\0\0\x01."[..],
        b"\x8a\x0a\0\0\0\0\0\0\0\0\0\0.",
        b"\x8a\x09\0\0\0\0\0\0\0\0\xff.",
    ] {
        assert_eq!(error(bytes).to_string(), "PyTorch snapshot: byte 0: an integer of more than 64 bits");
    }
}

#[test]
fn containers_filled_in_turns_keep_their_elements() {
    // a = [1]; b = [a]; a.append(2); a.append(b): a is filled around the making of b.
    let bytes = b"\x80\x02]q\0K\x01a]q\x01h\0ah\0K\x02ah\x01a0.";
    assert!(parse(bytes, &Limits::default()).is_err(), "two values are left on the stack");
    let bytes = b"\x80\x02]q\0K\x01a]q\x01h\0a0K\x02ah\x01a.";
    assert_eq!(shown(bytes), "[Int(1), Int(2), list of 1]");
    // Two dictionaries filled alternately.
    let bytes = b"\x80\x02(}q\0}q\x01tq\x02h\0(K\x01K\x01u0h\x01(K\x02K\x02u0h\0(K\x03K\x03u0.";
    let pickle = parse(bytes, &Limits::default()).unwrap();
    let View::Tuple(mut items) = pickle.root().view() else { panic!("a tuple") };
    let View::Dict(first) = items.next().unwrap().view() else { panic!("a dict") };
    assert_eq!(format!("{:?}", first.collect::<Vec<_>>()), "[(Int(1), Int(1)), (Int(3), Int(3))]");
}

#[test]
fn what_the_file_shares_is_one_container() {
    // x = []; [x, x]
    let pickle = parse(b"\x80\x02]q\0(]q\x01h\x01e.", &Limits::default()).unwrap();
    assert_eq!(pickle.containers(), 2);
    let View::List(items) = pickle.root().view() else { panic!("a list") };
    let numbers: Vec<_> = items.map(|item| item.container_index()).collect();
    assert_eq!(numbers, [Some(1), Some(1)]);
}

#[test]
fn a_list_that_contains_itself_is_read_and_shown() {
    assert_eq!(shown(b"\x80\x02]q\0h\0a."), "[list of 1]");
}

#[test]
fn nesting_of_a_million_needs_no_stack() {
    let bytes = [&b"\x80\x02)"[..], &[0x85; 1_000_000], b"."].concat();
    assert_eq!(parse(&bytes, &Limits::default()).unwrap().containers(), 1_000_001);
}

#[test]
fn every_opcode_that_does_more_than_hold_data_is_refused_by_name_and_byte() {
    for opcode in *b"cioRbPQ\x81\x82\x83\x84\x8f\x90\x91\x92\x93\x97\x98ILFSTUVgp2" {
        let failed = error(&[0x80, 4, b'N', opcode, b'x', b'\n', b'.']);
        assert!(matches!(failed, TraceError::Refused { offset: 3, .. }), "{failed}");
    }
    let message = error(b"\x80\x04\x8c\x02os\x8c\x06system\x93.").to_string();
    assert_eq!(message, "pickle: byte 14: opcode STACK_GLOBAL refused: it imports code by name");
    assert_eq!(error(b"\x80\x04\xf0").to_string(), "PyTorch snapshot: byte 2: no opcode of pickle: 0xf0");
}

#[test]
fn lengths_beyond_the_file_are_errors_before_anything_is_allocated() {
    let cases: [&[u8]; 6] = [
        b"X\xff\xff\xff\0ab",
        b"\x8d\xff\xff\xff\0\0\0\0\0ab",
        b"\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.",
        b"B\xff\xff\xff\0a",
        b"\x8b\xff\xff\xff\0a",
        b"\x8e\xff\xff\xff\0\0\0\0\0",
    ];
    for bytes in cases {
        let failed = error(bytes);
        assert!(matches!(failed, TraceError::Truncated { .. } | TraceError::Limit { .. }), "{failed}");
        assert!(failed.offset().is_some());
    }
    assert!(matches!(error(b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff"), TraceError::Limit { offset: 0, .. }));
}

#[test]
fn limits_are_kept_and_named() {
    let limits = Limits { pickle_depth: 3, pickle_values: 5, pickle_string_bytes: 4, ..Limits::default() };
    let message = |bytes: &[u8]| parse(bytes, &limits).unwrap_err().to_string();
    assert_eq!(message(b"(((("), "PyTorch snapshot: byte 3: the depth of nesting beyond the limit of 3");
    assert_eq!(message(b"]]]]]]"), "PyTorch snapshot: byte 5: the number of values beyond the limit of 5");
    assert_eq!(message(b"\x8c\x05hello."), "PyTorch snapshot: byte 0: a string beyond the limit of 4");
    let far = error(b"Nr\xff\xff\xff\x7f.");
    assert!(
        matches!(far, TraceError::Limit { offset: 1, what: "the gap between memo indices", .. }),
        "{far}"
    );
}

#[test]
fn a_stack_that_does_not_fit_the_opcode_is_an_error() {
    for bytes in [
        &b"."[..],
        b"a.",
        b"s.",
        b"e.",
        b"u.",
        b"t.",
        b"0.",
        b"1.",
        b"\x85.",
        b"q\0.",
        b"NN.",
        b"(N.",
        b"h\0.",
        b"}(Nu.",
        b"}N.",
        b"N(e.",
        b"](Na.",
        b"](Nu.",
        b"}]Ns.",
        b"(Nd.",
        b"N",
        b"",
        b"N.N",
        b"\x80\x06N.",
        b"(\x94.",
    ] {
        let failed = error(bytes);
        assert!(failed.offset().is_some(), "{bytes:?}: {failed}");
    }
}

#[test]
fn strings_are_utf8_but_for_lone_surrogates() {
    let pickle = parse(b"\x8c\x05a\xed\xb2\x80b.", &Limits::default()).unwrap();
    assert!(pickle.root().as_text().unwrap().starts_with('a'));
    assert!(error(b"\x8c\x02a\xff.").to_string().contains("not UTF-8"));
}
