//! Device code that is whole enough to be given to the driver.
//!
//! `cuModuleLoadData` takes an address and no length: it believes the image's own header, or looks for the zero at the end
//! of a text. A slice that ends early would make it read on, so what the header promises is compared with what is
//! there. Three kinds are known: PTX text, a compiled image (ELF), and a fat binary of several of them.

use std::borrow::Cow;

const ELF_MAGIC: &[u8] = b"\x7fELF";
/// `FATBIN_MAGIC`, 0xba55ed50 in the order of a little-endian machine.
const FAT_BINARY_MAGIC: &[u8] = &[0x50, 0xed, 0x55, 0xba];

/// The image as the driver can take it, or what is wrong with it.
pub(crate) fn checked(image: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    if image.starts_with(ELF_MAGIC) {
        whole(image, elf_bytes(image), "an ELF image")
    } else if image.starts_with(FAT_BINARY_MAGIC) {
        whole(image, fat_binary_bytes(image), "a fat binary")
    } else if image.iter().all(|byte| *byte == 0) {
        Err("an empty image".to_owned())
    } else if std::str::from_utf8(image).is_ok() {
        Ok(if image.last() == Some(&0) { image.into() } else { [image, &[0]].concat().into() })
    } else {
        Err(format!("{} bytes that are neither PTX text nor a compiled image", image.len()))
    }
}

fn whole<'i>(image: &'i [u8], promised: Option<u64>, what: &str) -> Result<Cow<'i, [u8]>, String> {
    let there = image.len() as u64;
    match promised {
        Some(promised) if promised <= there => Ok(image.into()),
        Some(promised) => Err(format!("{what} of {promised} bytes, of which {there} are there")),
        None => Err(format!("{what} whose header is cut off or damaged")),
    }
}

/// Where the last section or table of a 64-bit ELF file ends. `None` where its headers are not whole.
fn elf_bytes(image: &[u8]) -> Option<u64> {
    const CLASS_64: u8 = 2;
    const SECTION_WITHOUT_BYTES: u32 = 8; // SHT_NOBITS
    if *image.get(4)? != CLASS_64 {
        return None;
    }
    let (program_table, section_table) = (u64_at(image, 32)?, u64_at(image, 40)?);
    let (program_size, programs) = (u16_at(image, 54)?, u16_at(image, 56)?);
    let (section_size, sections) = (u16_at(image, 58)?, u16_at(image, 60)?);
    let mut end = program_table.checked_add(u64::from(program_size) * u64::from(programs))?;
    end = end.max(section_table.checked_add(u64::from(section_size) * u64::from(sections))?);
    for index in 0..u64::from(sections) {
        let header = usize::try_from(section_table.checked_add(index * u64::from(section_size))?).ok()?;
        if u32_at(image, header.checked_add(4)?)? != SECTION_WITHOUT_BYTES {
            let (offset, bytes) =
                (u64_at(image, header.checked_add(24)?)?, u64_at(image, header.checked_add(32)?)?);
            end = end.max(offset.checked_add(bytes)?);
        }
    }
    Some(end)
}

/// Magic (4 bytes), version (2), size of this header (2), size of what follows (8).
fn fat_binary_bytes(image: &[u8]) -> Option<u64> {
    u64_at(image, 8)?.checked_add(u64::from(u16_at(image, 6)?))
}

fn bytes_at<const N: usize>(image: &[u8], at: usize) -> Option<[u8; N]> {
    image.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(image: &[u8], at: usize) -> Option<u16> {
    bytes_at(image, at).map(u16::from_le_bytes)
}

fn u32_at(image: &[u8], at: usize) -> Option<u32> {
    bytes_at(image, at).map(u32::from_le_bytes)
}

fn u64_at(image: &[u8], at: usize) -> Option<u64> {
    bytes_at(image, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_gets_the_zero_it_needs_and_only_one() {
        assert_eq!(checked(b".version 7.0").unwrap().as_ref(), b".version 7.0\0");
        assert_eq!(checked(b".version 7.0\0").unwrap().as_ref(), b".version 7.0\0");
    }

    #[test]
    fn a_fat_binary_must_be_as_long_as_it_says() {
        let mut image = FAT_BINARY_MAGIC.to_vec();
        image.extend([1, 0, 16, 0]);
        image.extend(4_u64.to_le_bytes());
        assert!(checked(&image).unwrap_err().contains("20 bytes, of which 16"));
        image.extend([0; 4]);
        assert_eq!(checked(&image).unwrap().len(), 20);
        assert!(checked(&image[..10]).unwrap_err().contains("cut off"));
    }

    /// One section of `bytes` behind a header of 64 bytes and a section table of one entry.
    fn elf(bytes: u64) -> Vec<u8> {
        let mut image = vec![0; 128 + bytes as usize];
        image[..4].copy_from_slice(ELF_MAGIC);
        image[4] = 2;
        image[40..48].copy_from_slice(&64_u64.to_le_bytes());
        image[58..60].copy_from_slice(&64_u16.to_le_bytes());
        image[60..62].copy_from_slice(&1_u16.to_le_bytes());
        image[64 + 24..64 + 32].copy_from_slice(&128_u64.to_le_bytes());
        image[64 + 32..64 + 40].copy_from_slice(&bytes.to_le_bytes());
        image
    }

    #[test]
    fn an_elf_image_must_hold_all_its_sections() {
        let image = elf(100);
        assert!(checked(&image).is_ok());
        assert!(checked(&image[..200]).unwrap_err().contains("228 bytes, of which 200"));
        for cut in 4..128 {
            assert!(checked(&image[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn what_is_neither_text_nor_an_image_is_refused() {
        assert!(checked(b"").is_err());
        assert!(checked(b"\0").is_err());
        assert!(checked(&[0xff, 0xfe, 0x00]).is_err());
    }
}
