//! Marks in a guest's dirty log for the bytes that were written into its buffers ([`crate::migration`]).

use weir_guestmem::{Slice, WriteLog};
use weir_wire::VnetHdr;
use weir_wire::head::HEAD_CAPACITY;

use super::Filling;

/// The most bytes of a packet that are written before the copy: its header and its front.
const FRONT_MAX: usize = VnetHdr::LEN + HEAD_CAPACITY;

impl Filling<'_, '_> {
    /// Marks headers and fronts of all packets that were written.
    #[inline(never)]
    pub(super) fn mark_fronts(&self, log: &WriteLog) {
        let marks = log.after_writes();
        for reserved in &self.chains[..self.next] {
            let mut left = FRONT_MAX;
            for piece in reserved.pieces(&self.buffers) {
                let front = piece.first(left);
                marks.slice(&front);
                left -= front.len();
            }
        }
    }
}

/// Marks a container without the frames' bodies, which are copied later.
#[cold]
pub(super) fn mark_container(log: &WriteLog, written: &Slice<'_>) {
    log.after_writes().slice(written);
}

/// Marks the copied bytes (from, to).
#[inline(never)]
pub(super) fn mark_copies(log: &WriteLog, copies: &[[Slice<'_>; 2]]) {
    let marks = log.after_writes();
    for [from, to] in copies {
        marks.slice(&to.first(from.len()));
    }
}
