//! Places of granted bytes, and the copies that move a burst of packets. Plain data, so that one
//! system call can make all copies.

/// Bytes in one granted page: `offset + len` is at most a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Grant reference. The hypervisor checks whether the guest granted it, to whom and for what.
    pub gref: u32,
    /// Offset of the bytes in the page.
    pub offset: u16,
    /// Length (bytes).
    pub len: u16,
}

impl Segment {
    /// Returns the first `len` bytes, or all if there are fewer.
    #[must_use]
    pub fn first(self, len: u16) -> Self {
        Self { len: self.len.min(len), ..self }
    }

    /// Returns the bytes from `at` on; none if there are fewer.
    #[must_use]
    pub fn skip(self, at: u16) -> Self {
        let at = at.min(self.len);
        Self { offset: self.offset.saturating_add(at), len: self.len - at, ..self }
    }
}

/// One copy into a granted page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantCopy {
    /// Index of the source piece.
    pub piece: usize,
    /// Offset in that piece.
    pub at: u32,
    /// Destination, at least 1 byte.
    pub to: Segment,
}

/// Returns the copies that fill `to` from pieces of `lens` bytes in order, until either runs out.
/// No copy crosses the end of a piece or a segment: between two guests, each copy is one
/// `GNTTABOP_copy`.
pub fn copies(
    lens: impl IntoIterator<Item = u32>,
    to: impl IntoIterator<Item = Segment>,
) -> impl Iterator<Item = GrantCopy> {
    let mut pieces = lens.into_iter().enumerate().filter(|(_, len)| *len > 0);
    let mut segments = to.into_iter().filter(|segment| segment.len > 0);
    let mut piece = pieces.next();
    let mut segment = segments.next();
    let mut at = 0;
    std::iter::from_fn(move || {
        let ((nth, len), room) = (piece?, segment?);
        let step = room.first(u16::try_from(len - at).unwrap_or(u16::MAX));
        let copy = GrantCopy { piece: nth, at, to: step };
        at += u32::from(step.len);
        if at == len {
            piece = pieces.next();
            at = 0;
        }
        let rest = room.skip(step.len);
        segment = if rest.len == 0 { segments.next() } else { Some(rest) };
        Some(copy)
    })
}
