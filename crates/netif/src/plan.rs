//! Where bytes are that a guest granted, and which copies move a burst of packets: plain data, so that
//! whoever makes the system call makes one for all of them.

/// Bytes in one granted page: `offset + len` is at most a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Grant reference. Whether the guest granted it, to whom and for what, the hypervisor checks.
    pub gref: u32,
    /// Where the bytes begin.
    pub offset: u16,
    /// Bytes.
    pub len: u16,
}

impl Segment {
    /// The first `len` bytes, or all if there are fewer.
    #[must_use]
    pub fn first(self, len: u16) -> Self {
        Self { len: self.len.min(len), ..self }
    }

    /// The bytes from `at` on; none if there are not so many.
    #[must_use]
    pub fn skip(self, at: u16) -> Self {
        let at = at.min(self.len);
        Self { offset: self.offset.saturating_add(at), len: self.len - at, ..self }
    }
}

/// One copy into a granted page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantCopy {
    /// Which of the pieces that the bytes come from.
    pub piece: usize,
    /// Where in that piece they begin.
    pub at: u32,
    /// Where they go, and how many they are: at least 1.
    pub to: Segment,
}

/// The copies that fill `to` from pieces of `lens` bytes in order, until either runs out. No copy crosses the end
/// of a piece or a segment: between two guests, each copy is one `GNTTABOP_copy`.
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
