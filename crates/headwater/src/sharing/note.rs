//! What the importer of a block has to know, and its form as bytes.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `hwshare`, then the version, 1 |
//! | 8 | the size of the block |
//! | 8 | where it begins, counted from the beginning of the first handle |
//! | 4 | how many handles there are |
//! | 1 + 31 | the length of the device's PCI address, and the address, padded with zeros |
//! | 8 each | the sizes of the handles, in the order in which they lie behind the block |
//!
//! Numbers are little-endian. The bytes come from another process and are not trusted: every field is checked before it is used,
//! and there is exactly one form for each note.

use std::fmt;

/// The most handles one export names: as many descriptors are open at once, in both processes.
pub const HANDLES_MAX: usize = 4096;

const MAGIC: [u8; 8] = *b"hwshare\x01";
const PCI_MAX: usize = 31;
const HEAD_BYTES: usize = 8 + 8 + 8 + 4 + 1 + PCI_MAX;

/// A block as another process has to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockNote {
    bytes: u64,
    offset_bytes: u64,
    pci_address: String,
    handles: Vec<u64>,
}

/// Bytes that are no note.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no note of an exported block: {0}")]
pub struct MalformedNote(String);

impl MalformedNote {
    pub(super) fn too_long(bytes: usize) -> Self {
        malformed(format_args!("{bytes} bytes, of at most {}", BlockNote::BYTES_MAX))
    }
}

fn malformed(why: impl fmt::Display) -> MalformedNote {
    MalformedNote(why.to_string())
}

impl BlockNote {
    /// A block of `bytes`, `offset_bytes` into memory that consists of handles of these sizes, on the device at `pci_address`.
    ///
    /// # Errors
    /// Where there is no handle or more than [`HANDLES_MAX`], one is empty, the block is empty or not inside them, or the
    /// PCI address is not 1 to 31 printable characters.
    pub fn new(
        bytes: u64,
        offset_bytes: u64,
        pci_address: &str,
        handles: Vec<u64>,
    ) -> Result<Self, MalformedNote> {
        if handles.is_empty() || handles.len() > HANDLES_MAX {
            return Err(malformed(format_args!("{} handles, of 1 to {HANDLES_MAX}", handles.len())));
        }
        if handles.contains(&0) {
            return Err(malformed("a handle of 0 bytes"));
        }
        let sum = handles.iter().try_fold(0_u64, |sum, bytes| sum.checked_add(*bytes));
        let end = offset_bytes.checked_add(bytes).filter(|_| bytes > 0);
        match (end, sum) {
            (Some(end), Some(sum)) if end <= sum => {}
            _ => {
                let what =
                    format_args!("{bytes} bytes at {offset_bytes} are not inside {sum:?} bytes").to_string();
                return Err(malformed(what));
            }
        }
        let printable = pci_address.bytes().all(|byte| byte.is_ascii_graphic());
        if pci_address.is_empty() || pci_address.len() > PCI_MAX || !printable {
            return Err(malformed(format_args!("a PCI address of {} characters", pci_address.len())));
        }
        Ok(Self { bytes, offset_bytes, pci_address: pci_address.to_owned(), handles })
    }

    /// The size of the block.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it begins, counted from the beginning of the first handle.
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// The place of its device on the PCI bus: what both processes call the same, whatever devices each of them sees.
    pub fn pci_address(&self) -> &str {
        &self.pci_address
    }

    /// The sizes of the handles behind it, in the order of addresses.
    pub fn handles(&self) -> &[u64] {
        &self.handles
    }

    /// What all handles have together.
    pub fn mapped_bytes(&self) -> u64 {
        self.handles.iter().sum()
    }

    /// The note as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES + 8 * self.handles.len());
        out.extend(MAGIC);
        out.extend(self.bytes.to_le_bytes());
        out.extend(self.offset_bytes.to_le_bytes());
        // Both are bounded by `new`.
        out.extend((self.handles.len() as u32).to_le_bytes());
        out.push(self.pci_address.len() as u8);
        out.extend(self.pci_address.as_bytes());
        out.resize(HEAD_BYTES, 0);
        self.handles.iter().for_each(|bytes| out.extend(bytes.to_le_bytes()));
        out
    }

    /// The note that `bytes` are, all of them.
    ///
    /// # Errors
    /// Where they are none.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MalformedNote> {
        let (head, rest) = bytes
            .split_at_checked(HEAD_BYTES)
            .ok_or_else(|| malformed(format_args!("{} bytes", bytes.len())))?;
        if head[..8] != MAGIC {
            return Err(malformed("it begins with something else"));
        }
        let handles = u32::from_le_bytes([head[24], head[25], head[26], head[27]]) as usize;
        if handles > HANDLES_MAX || rest.len() != 8 * handles {
            return Err(malformed(format_args!("{} bytes for {handles} handles", rest.len())));
        }
        let (pci_len, pci) = (usize::from(head[28]), &head[29..]);
        let pci_address = pci.get(..pci_len).and_then(|name| std::str::from_utf8(name).ok());
        let pci_address = pci_address.filter(|_| pci[pci_len..].iter().all(|byte| *byte == 0));
        let pci_address = pci_address.ok_or_else(|| malformed("its PCI address is none"))?;
        let handles = rest.chunks_exact(8).map(number).collect();
        Self::new(number(&head[8..16]), number(&head[16..24]), pci_address, handles)
    }

    /// The most bytes that a note has.
    pub(super) const BYTES_MAX: usize = HEAD_BYTES + 8 * HANDLES_MAX;
}

/// Eight little-endian bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn notes_that_make_no_sense_are_refused() {
        let new =
            |bytes, offset, pci: &str, handles: &[u64]| BlockNote::new(bytes, offset, pci, handles.to_vec());
        assert!(new(10, 6, "0000:01:00.0", &[8, 8]).is_ok());
        for (bytes, offset, pci, handles) in [
            (0, 0, "x", &[8][..]),
            (9, 0, "x", &[8]),
            (1, 8, "x", &[8]),
            (u64::MAX, 2, "x", &[8]),
            (8, 0, "x", &[]),
            (8, 0, "x", &[8, 0]),
            (8, 0, "x", &[u64::MAX, 8]),
            (8, 0, "", &[8]),
            (8, 0, "two words", &[8]),
            (8, 0, "0123456789012345678901234567890123456789", &[8]),
        ] {
            assert!(new(bytes, offset, pci, handles).is_err(), "{bytes} {offset} {pci} {handles:?}");
        }
        assert!(new(1, 0, "x", &vec![1; HANDLES_MAX + 1]).is_err());
    }

    fn note() -> impl Strategy<Value = BlockNote> {
        let handles = prop::collection::vec(1_u64..1 << 40, 1..20);
        (handles, "[!-~]{1,31}", any::<(u64, u64)>()).prop_map(|(handles, pci, (at, size))| {
            let sum: u64 = handles.iter().sum();
            let offset = at % sum;
            BlockNote::new(1 + size % (sum - offset), offset, &pci, handles).unwrap()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn bytes_come_back_as_the_note_they_were(note in note()) {
            prop_assert_eq!(BlockNote::from_bytes(&note.to_bytes()), Ok(note));
        }

        #[test]
        fn any_bytes_are_refused_or_are_the_one_form_of_a_note(
            note in note(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in any::<prop::sample::Index>(),
            keep in any::<bool>(),
        ) {
            let mut bytes = note.to_bytes();
            for (place, value) in changes {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            if !keep {
                bytes.truncate(cut.index(bytes.len() + 1));
            }
            if let Ok(read) = BlockNote::from_bytes(&bytes) {
                prop_assert_eq!(read.to_bytes(), bytes);
            }
        }

        #[test]
        fn noise_is_never_more_than_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = BlockNote::from_bytes(&bytes);
        }
    }
}
