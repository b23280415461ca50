//! The frames of a list in rows: frames of one flow that follow each other are compared once, for the tables of both
//! ends.

use weir_limits::{BURST_MAX, HEAD_LEN};

use crate::plain::is_like;

const _: () = assert!(BURST_MAX <= u64::BITS as usize);

/// See the module. A row says nothing of a frame by itself: all of its frames go on if the first one does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rows {
    /// Bit i: frame i belongs to the row of the frame before.
    follows: u64,
    /// Bit i: there is a frame i.
    all: u64,
}

impl Rows {
    /// The rows of at most [`BURST_MAX`] frames, each with its first bytes, their number, and what else the frames of a
    /// row have in common.
    #[inline(always)]
    pub fn of<'f, T: PartialEq>(
        frames: impl Iterator<Item = (&'f [u8; HEAD_LEN], usize, T)>,
    ) -> Self {
        let mut rows = Self::default();
        let mut first: Option<(&[u8; HEAD_LEN], T)> = None;
        for (nth, (head, len, common)) in frames.enumerate().take(BURST_MAX) {
            rows.all |= 1 << nth;
            match &first {
                Some((before, of)) if *of == common && is_like(head, len, before) => {
                    rows.follows |= 1 << nth;
                }
                _ => first = Some((head, common)),
            }
        }
        rows
    }

    /// Asks whether frames go on, in their order: of each row the first, and as long as none did, the next.
    #[inline(always)]
    pub fn ask(self, mut goes_on: impl FnMut(usize) -> bool) {
        let mut left = self.all;
        while left != 0 {
            let nth = left.trailing_zeros();
            left &= left - 1;
            if goes_on(nth as usize) {
                let behind = self.follows >> nth >> 1;
                if behind & 1 != 0 {
                    // A row may end with the last bit.
                    left &= u64::MAX.checked_shl(nth + 1 + behind.trailing_ones()).unwrap_or(0);
                }
            }
        }
    }
}
