//! A writer for the `newc` cpio format, which the Linux kernel unpacks into its first root file
//! system (Documentation/driver-api/early-userspace/buffer-format.rst).

/// The name of the last entry of an archive.
const TRAILER: &str = "TRAILER!!!";

const MODE_DIRECTORY: u32 = 0o040_755;
const MODE_PROGRAM: u32 = 0o100_755;

/// An archive being written.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// Adds the directory `path` (relative to the root). Its parent must have been added before.
    pub fn directory(&mut self, path: &str) {
        self.entry(path, MODE_DIRECTORY, &[]);
    }

    /// Adds the file `path` with `content`, readable and executable for all.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, MODE_PROGRAM, content);
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let fields: [usize; 13] = [
            self.entries as usize, // inode: files of the same number would be hard links
            mode as usize,
            0, // uid
            0, // gid
            1, // nlink
            0, // mtime
            content.len(),
            0, // device, major
            0, // device, minor
            0, // rdev, major
            0, // rdev, minor
            name.len() + 1,
            0, // checksum, unused in this format
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_110_bytes_and_names_and_contents_are_padded_to_4() {
        let mut archive = Archive::default();
        archive.file("ab", b"hello");
        let bytes = archive.finish();
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[54..62], b"00000005", "length of the content");
        assert_eq!(&bytes[94..102], b"00000003", "length of the name with its NUL");
        assert_eq!(&bytes[110..116], b"ab\0\0\0\0");
        assert_eq!(&bytes[116..121], b"hello");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(bytes.len() % 4, 0);
    }
}
