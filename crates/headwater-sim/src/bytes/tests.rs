//! Sparse content against a plain vector of bytes that may be absent.

use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

#[test]
fn filling_gigabytes_takes_no_room() {
    let mut bytes = Bytes::new(139 * GIB);
    bytes.fill(4, 100 * GIB, [1, 2, 3, 4]);
    bytes.fill(100 * GIB, 39 * GIB, [1, 2, 3, 4]);
    assert!(bytes.host_bytes() < 100 << 10, "{} bytes", bytes.host_bytes());
    assert_eq!(bytes.first_unwritten(0, 139 * GIB), Some(0));
    assert_eq!(bytes.first_unwritten(4, 139 * GIB - 4), None);
    assert_eq!(bytes.count_words_ne(4, GIB, 0x0403_0201), 0);
    bytes.add_words(GIB, GIB, 1);
    assert_eq!(bytes.count_words_ne(0, 139 * GIB / 4, 0x0403_0202), 135 * GIB / 4);

    let mut copy = Bytes::new(139 * GIB);
    copy.copy_from(&bytes, 0, 0, 139 * GIB);
    assert_eq!(copy.first_unwritten(0, 139 * GIB), Some(0));
    assert_eq!(copy.count_words_ne(0, 139 * GIB / 4, 0x0403_0202), 135 * GIB / 4);
    assert!(copy.host_bytes() < 200 << 10);
}

#[test]
fn a_short_last_chunk_is_a_whole_one() {
    let mut bytes = Bytes::new(CHUNK_BYTES + 512);
    bytes.fill(0, CHUNK_BYTES + 512, [7; 4]);
    assert_eq!((bytes.runs.len(), bytes.data.len()), (1, 0));
}

#[test]
fn writing_a_uniform_chunk_takes_no_room() {
    let mut bytes = Bytes::new(1 << 20);
    bytes.write(0, &vec![0; 1 << 20]);
    assert!(bytes.host_bytes() < 1000);
    bytes.write(5, &[7]);
    assert!(bytes.host_bytes() > CHUNK_BYTES);
    bytes.erase(0, 1 << 20);
    assert_eq!(bytes.host_bytes(), 0);
}

#[test]
fn unwritten_bytes_are_known_and_do_not_read_as_zero() {
    let mut bytes = Bytes::new(16);
    bytes.write(2, &[1, 2]);
    let mut out = [0; 5];
    bytes.read(1, &mut out);
    assert_eq!(out, [UNWRITTEN, 1, 2, UNWRITTEN, UNWRITTEN]);
    assert_eq!(bytes.first_unwritten(2, 2), None);
    assert_eq!(bytes.first_unwritten(2, 3), Some(4));
    assert_eq!(bytes.first_unwritten(2, 0), None);
    assert_eq!(bytes.count_words_ne(0, 4, u32::from_le_bytes([UNWRITTEN; 4])), 4);
    assert_eq!(bytes.len(), 16);
}

#[test]
#[should_panic(expected = "8 bytes at 12 of a memory of 16 bytes")]
fn a_range_beyond_the_end_is_the_machines_mistake() {
    Bytes::new(16).write(12, &[0; 8]);
}

/// Three chunks and a bit: the last is short and not a multiple of a word.
const LEN: u64 = 3 * CHUNK_BYTES + 1003;

#[derive(Clone, Debug)]
enum Step {
    Write(Range<u64>, u8),
    Fill(Range<u64>, [u8; 4]),
    Erase(Range<u64>),
    AddWords(Range<u64>, u32),
    CopyFrom(Range<u64>, u64),
    CopyWithin(Range<u64>, u64),
}

/// Offsets near the borders of chunks, where mistakes live, and elsewhere.
fn offsets() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => (0..=3u64, -9i64..=9).prop_map(|(chunk, near)| (chunk * CHUNK_BYTES).saturating_add_signed(near)),
        1 => Just(LEN),
        1 => 0..=LEN,
    ]
}

fn ranges() -> impl Strategy<Value = Range<u64>> {
    (offsets(), offsets(), any::<bool>()).prop_map(|(a, b, short)| {
        let (start, end) = (a.min(b), a.max(b));
        if short { start..end.min(start + 13) } else { start..end }
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (ranges(), any::<u8>()).prop_map(|(range, seed)| Step::Write(range, seed)),
        (ranges(), any::<[u8; 4]>()).prop_map(|(range, pattern)| Step::Fill(range, pattern)),
        ranges().prop_map(Step::Erase),
        (ranges(), any::<u32>()).prop_map(|(range, value)| Step::AddWords(range, value)),
        (ranges(), offsets()).prop_map(|(range, dst)| Step::CopyFrom(range, dst)),
        (ranges(), offsets()).prop_map(|(range, dst)| Step::CopyWithin(range, dst)),
    ];
    proptest::collection::vec(step, 1..12)
}

/// The words inside `range`: the offset of the first and their number.
fn words_in(range: &Range<u64>) -> (u64, u64) {
    let start = range.start.next_multiple_of(4);
    (start, range.end.saturating_sub(start) / 4)
}

fn word_of(naive: &[Option<u8>], at: u64) -> Option<u32> {
    let at = at as usize;
    let word: Vec<u8> = naive[at..at + 4].iter().copied().collect::<Option<_>>()?;
    Some(u32::from_le_bytes(word.try_into().unwrap()))
}

fn assert_same(bytes: &Bytes, naive: &[Option<u8>]) {
    let mut content = vec![0; LEN as usize];
    bytes.read(0, &mut content);
    let expected: Vec<u8> = naive.iter().map(|byte| byte.unwrap_or(UNWRITTEN)).collect();
    assert!(
        content == expected,
        "content differs at {:?}",
        content.iter().zip(&expected).position(|(a, b)| a != b)
    );
    let mut at = 0;
    // From every unwritten byte to the next: the two agree on all of them.
    while at < LEN {
        let real = naive[at as usize..].iter().position(Option::is_none).map(|found| at + found as u64);
        assert_eq!(bytes.first_unwritten(at, LEN - at), real);
        let Some(real) = real else { break };
        let written = naive[real as usize..].iter().position(Option::is_some);
        at = written.map_or(LEN, |found| real + found as u64);
    }
}

fn assert_tidy(bytes: &Bytes) {
    let chunks = LEN.div_ceil(CHUNK_BYTES);
    let mut before = None;
    for (&first, run) in &bytes.runs {
        assert!(first < run.end_chunk && run.end_chunk <= chunks);
        assert!(bytes.data.range(first..run.end_chunk).next().is_none(), "in one map only");
        let apart = before.is_none_or(|Run { end_chunk, pattern }| {
            end_chunk < first || (end_chunk == first && pattern != run.pattern)
        });
        assert!(apart, "runs of one pattern that touch are one");
        before = Some(*run);
    }
    for (&chunk, data) in &bytes.data {
        assert_eq!(data.bytes.len(), bytes.chunk_len(chunk));
        assert!(!data.is_unwritten(), "an empty chunk is absent");
    }
}

/// Another memory with something of everything in it, and its naive twin.
fn source() -> (Bytes, Vec<Option<u8>>) {
    let mut bytes = Bytes::new(LEN);
    let mut naive = vec![None; LEN as usize];
    bytes.fill(100, CHUNK_BYTES * 2, [1, 2, 3, 4]);
    (0..CHUNK_BYTES * 2).for_each(|i| naive[(100 + i) as usize] = Some(1 + (i % 4) as u8));
    for at in (CHUNK_BYTES * 2..LEN - 10).step_by(4099) {
        bytes.write(at, &[9, 8, 7]);
        (0..3).for_each(|i| naive[at as usize + i] = Some(9 - i as u8));
    }
    (bytes, naive)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn content_is_what_a_plain_vector_would_hold(steps in steps()) {
        let mut bytes = Bytes::new(LEN);
        let mut naive: Vec<Option<u8>> = vec![None; LEN as usize];
        let (other, other_naive) = source();
        for step in steps {
            match step {
                Step::Write(range, seed) => {
                    let data: Vec<u8> = (range.start..range.end).map(|i| (i as u8).wrapping_mul(seed)).collect();
                    bytes.write(range.start, &data);
                    range.zip(data).for_each(|(at, byte)| naive[at as usize] = Some(byte));
                }
                Step::Fill(range, pattern) => {
                    bytes.fill(range.start, range.end - range.start, pattern);
                    range.zip(pattern.iter().cycle()).for_each(|(at, byte)| naive[at as usize] = Some(*byte));
                }
                Step::Erase(range) => {
                    bytes.erase(range.start, range.end - range.start);
                    range.for_each(|at| naive[at as usize] = None);
                }
                Step::AddWords(range, value) => {
                    let (start, words) = words_in(&range);
                    let words = if start > LEN { 0 } else { words };
                    bytes.add_words(start.min(LEN / 4 * 4), words, value);
                    for at in (0..words).map(|i| start + i * 4) {
                        if let Some(word) = word_of(&naive, at) {
                            let sum = word.wrapping_add(value).to_le_bytes();
                            (0..4).for_each(|i| naive[at as usize + i] = Some(sum[i]));
                        }
                    }
                }
                Step::CopyFrom(range, dst) => {
                    let len = (range.end - range.start).min(LEN - dst);
                    bytes.copy_from(&other, range.start, dst, len);
                    let from = range.start as usize;
                    naive[dst as usize..(dst + len) as usize]
                        .copy_from_slice(&other_naive[from..from + len as usize]);
                }
                Step::CopyWithin(range, dst) => {
                    // Without overlap, which has no certain result.
                    let apart = range.start.abs_diff(dst);
                    let len = (range.end - range.start).min(LEN - dst).min(apart);
                    bytes.copy_within(range.start, dst, len);
                    naive.copy_within(range.start as usize..(range.start + len) as usize, dst as usize);
                }
            }
            assert_tidy(&bytes);
        }
        assert_same(&bytes, &naive);
        for value in [word_of(&naive, 0), word_of(&naive, CHUNK_BYTES), Some(0)].into_iter().flatten() {
            let real = (0..LEN / 4).filter(|word| word_of(&naive, word * 4) != Some(value)).count() as u64;
            prop_assert_eq!(bytes.count_words_ne(0, LEN / 4, value), real);
        }
    }
}
