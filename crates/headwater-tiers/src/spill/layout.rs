//! Parts and images: how the pieces of one spillable thing lie in host memory and on disk. Pure.
//!
//! On the GPU every part has a block of its own. Below, a *direct* layout has one image a part, and a *packed* one has a single
//! image for all: a header with the metadata, then the parts, each aligned to 256 bytes. Images are cut into chunks, one a pinned
//! block, and a chunk on disk is a block in memory: so data moves between the tiers in the same pieces.

/// What parts in a packed image are aligned to: what device blocks are, so that a copy never splits a vector load.
const PART_ALIGNMENT: u64 = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    parts: Vec<Part>,
    images: Vec<Image>,
    header: Vec<u8>,
}

/// Where a part is below the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) bytes: u64,
    pub(crate) image: usize,
    pub(crate) offset: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Image {
    bytes: u64,
    /// Parts in it, by offset.
    parts: Vec<usize>,
}

/// What a range of an image has of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) part: usize,
    pub(crate) part_offset: u64,
    pub(crate) image_offset: u64,
    pub(crate) bytes: u64,
}

impl Layout {
    /// One image a part.
    pub(crate) fn direct(parts: &[u64]) -> Self {
        let part = |(image, bytes): (usize, &u64)| Part { bytes: *bytes, image, offset: 0 };
        let image = |(part, bytes): (usize, &u64)| Image { bytes: *bytes, parts: vec![part] };
        Self {
            parts: parts.iter().enumerate().map(part).collect(),
            images: parts.iter().enumerate().map(image).collect(),
            header: Vec::new(),
        }
    }

    /// One image for all parts, behind `header`.
    pub(crate) fn packed(parts: &[u64], header: Vec<u8>) -> Self {
        let mut end = header.len() as u64;
        let mut place = |bytes: &u64| {
            let offset = end.next_multiple_of(PART_ALIGNMENT);
            end = offset + bytes;
            Part { bytes: *bytes, image: 0, offset }
        };
        let parts: Vec<_> = parts.iter().map(&mut place).collect();
        let image = Image { bytes: end, parts: (0..parts.len()).collect() };
        Self { parts, images: vec![image], header }
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub(crate) fn images(&self) -> usize {
        self.images.len()
    }

    pub(crate) fn image_bytes(&self, image: usize) -> u64 {
        self.images.get(image).map_or(0, |image| image.bytes)
    }

    /// What lies at the front of the first image.
    pub(crate) fn header(&self) -> &[u8] {
        &self.header
    }

    /// All parts.
    pub(crate) fn part_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// All images, each rounded up to whole granules.
    pub(crate) fn rounded_bytes(&self, granule_bytes: u64) -> u64 {
        self.images.iter().map(|image| image.bytes.next_multiple_of(granule_bytes)).sum()
    }

    /// What `bytes` bytes from `from` of an image are made of, the header left out.
    pub(crate) fn pieces(&self, image: usize, from: u64, bytes: u64) -> impl Iterator<Item = Piece> + '_ {
        let to = from.saturating_add(bytes);
        let parts = self.images.get(image).map_or(&[][..], |image| &image.parts);
        let end_of = |part: &usize| self.parts[*part].offset + self.parts[*part].bytes;
        let first = parts.partition_point(|part| end_of(part) <= from);
        parts[first..].iter().take_while(move |part| self.parts[**part].offset < to).filter_map(
            move |index| {
                let part = self.parts[*index];
                let (start, stop) = (part.offset.max(from), (part.offset + part.bytes).min(to));
                let piece = Piece {
                    part: *index,
                    part_offset: start.saturating_sub(part.offset),
                    image_offset: start,
                    bytes: stop.saturating_sub(start),
                };
                (piece.bytes > 0).then_some(piece)
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_cover_every_byte_of_every_part_once(
            parts in prop::collection::vec(0u64..5000, 1..8),
            chunk in 1u64..3000,
            is_packed in any::<bool>(),
        ) {
            let layout = if is_packed { Layout::packed(&parts, vec![1; 37]) } else { Layout::direct(&parts) };
            let mut seen = parts.iter().map(|bytes| vec![0u8; *bytes as usize]).collect::<Vec<_>>();
            for image in 0..layout.images() {
                let bytes = layout.image_bytes(image);
                for from in (0..bytes).step_by(chunk as usize) {
                    let len = chunk.min(bytes - from);
                    for piece in layout.pieces(image, from, len) {
                        prop_assert!(piece.image_offset >= from && piece.image_offset + piece.bytes <= from + len);
                        let start = piece.part_offset as usize;
                        for byte in &mut seen[piece.part][start..start + piece.bytes as usize] {
                            *byte += 1;
                        }
                    }
                }
            }
            prop_assert!(seen.iter().flatten().all(|count| *count == 1));
            prop_assert_eq!(layout.part_bytes(), parts.iter().sum::<u64>());
        }
    }
}
