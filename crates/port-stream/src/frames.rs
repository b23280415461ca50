//! Where a frame begins and ends in the stream: four bytes of length, big-endian, then the frame.

/// Bytes of a length.
pub(crate) const PREFIX_LEN: usize = 4;

/// What a stream begins with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<'s> {
    /// This frame.
    Whole(&'s [u8]),
    /// A part of a frame, or nothing.
    Part,
    /// The length of a frame that nobody may send.
    TooLong(u32),
}

impl Next<'_> {
    /// The beginning of `stream`, whose frames have at most `len_max` bytes.
    pub(crate) fn of(stream: &[u8], len_max: usize) -> Next<'_> {
        let Some((prefix, rest)) = stream.split_first_chunk::<PREFIX_LEN>() else {
            return Next::Part;
        };
        let announced = u32::from_be_bytes(*prefix);
        match usize::try_from(announced) {
            Ok(len) if len <= len_max => rest.get(..len).map_or(Next::Part, Next::Whole),
            _ => Next::TooLong(announced),
        }
    }
}

/// The length before a frame of `len` bytes.
pub(crate) fn prefix(len: usize) -> Option<[u8; PREFIX_LEN]> {
    u32::try_from(len).ok().map(u32::to_be_bytes)
}
