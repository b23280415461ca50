//! Lines of bounded length, from a stream that comes in pieces.

use std::io::{self, Read};

use weir_limits::AGENT_LINE_BYTES_MAX;

/// Error: a line is longer than `AGENT_LINE_BYTES_MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line has more than {AGENT_LINE_BYTES_MAX} bytes")]
pub struct TooLong;

/// Collects bytes and returns lines. It never keeps more than one line's worth of bytes.
#[derive(Debug)]
pub(crate) struct Lines {
    /// Buffer of `AGENT_LINE_BYTES_MAX` bytes.
    buffer: Box<[u8]>,
    /// Pending bytes: `buffer[start..end]`.
    start: usize,
    end: usize,
    /// End of the part that is known to hold no newline.
    scanned: usize,
}

impl Lines {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; AGENT_LINE_BYTES_MAX].into(), start: 0, end: 0, scanned: 0 }
    }

    /// Reads once, up to the free room, and returns the number of bytes: 0 at the stream's end.
    /// Call it when [`Lines::next_line`] has no whole line.
    pub(crate) fn fill(&mut self, source: &mut impl Read) -> io::Result<usize> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        let room_len = room.len();
        let len = source.read(room)?.min(room_len);
        self.end += len;
        Ok(len)
    }

    /// Returns the next non-empty line, without its newline; `None` if it is incomplete.
    pub(crate) fn next_line(&mut self) -> Result<Option<&[u8]>, TooLong> {
        loop {
            let pending = self.buffer.get(self.start..self.end).unwrap_or_default();
            let mut unseen = pending.iter().skip(self.scanned);
            let Some(offset) = unseen.position(|byte| *byte == b'\n') else {
                self.scanned = pending.len();
                return if pending.len() < AGENT_LINE_BYTES_MAX { Ok(None) } else { Err(TooLong) };
            };
            let (line_start, len) = (self.start, self.scanned + offset);
            self.start += len + 1;
            self.scanned = 0;
            if len > 0 {
                return Ok(self.buffer.get(line_start..line_start + len));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns all lines of `bytes`, which come in pieces of at most `piece` bytes.
    fn lines(bytes: &[u8], piece: usize) -> Result<Vec<Vec<u8>>, TooLong> {
        let mut lines = Lines::new();
        let mut out = Vec::new();
        let mut rest = bytes;
        loop {
            while let Some(line) = lines.next_line()? {
                out.push(line.to_vec());
            }
            assert!(lines.buffer.len() == AGENT_LINE_BYTES_MAX);
            let len = lines.fill(&mut rest.take(piece as u64)).unwrap();
            if len == 0 {
                return Ok(out);
            }
            rest = &rest[len..];
        }
    }

    #[test]
    fn lines_are_put_together_and_empty_ones_passed_over() {
        assert_eq!(lines(b"\nab\n\ncd\nrest", 1), Ok(vec![b"ab".to_vec(), b"cd".to_vec()]));
    }

    #[test]
    fn the_longest_line_passes_and_one_byte_more_does_not() {
        let mut bytes = vec![b'x'; AGENT_LINE_BYTES_MAX - 1];
        bytes.push(b'\n');
        assert_eq!(lines(&bytes, usize::MAX).map(|lines| lines.len()), Ok(1));
        bytes.insert(0, b'x');
        assert_eq!(lines(&bytes, 1000), Err(TooLong));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn pieces_make_no_difference(
            bytes in prop::collection::vec(prop_oneof![1 => Just(b'\n'), 20 => any::<u8>()], 0..2 * AGENT_LINE_BYTES_MAX),
            piece in 1_usize..5000,
        ) {
            prop_assert_eq!(lines(&bytes, piece), lines(&bytes, usize::MAX));
        }
    }
}
