//! What a TAP's queues and a packet socket have in common: one frame per system call, with a
//! `virtio_net_hdr` before it.

use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use weir_engine::Side;
use weir_guestmem::{Batch, HostBuffer};
use weir_limits::FRAME_LEN_MAX;
use weir_policy::steering::Steering;
use weir_wire::vlan::TAG_LEN;
use weir_wire::{OffloadCaps, VnetHdr};

/// Bytes of a frame buffer: a VLAN tag that the device gives separately, the header, the longest frame, and one
/// more byte. A read that fills the buffer was truncated, and [`Burst::add`](weir_engine::burst::Burst::add) finds
/// the frame too long.
pub const SLOT_LEN: usize = TAG_LEN + VnetHdr::LEN + FRAME_LEN_MAX as usize + 1;

/// A device that a [`FramePort`](crate::FramePort) serves.
pub trait FrameDevice: Send + Sync {
    /// The interface's name.
    fn name(&self) -> &str;

    /// One descriptor per queue, non-blocking: readable when a frame is there.
    fn queues(&self) -> &[OwnedFd];

    /// Which queue a flow's frames go to.
    fn steering(&self) -> &Steering;

    /// What the device takes undone in frames from weir.
    fn offloads(&self) -> OffloadCaps;

    /// Bytes of the `virtio_net_hdr`: 12, or 10 without `num_buffers`.
    fn vnet_len(&self) -> usize;

    /// Reads frames by one system call, one into each of `buffers`, in their order, which have [`SLOT_LEN`] bytes:
    /// `places` has where in them header and frame are. Says how many it might have read: with fewer in `places`
    /// there are no more.
    ///
    /// # Errors
    /// `WouldBlock`: there is none. `Interrupted`: it is worth asking again. Any other means a lost
    /// frame, if not a lost device: see [`is_gone`](Self::is_gone).
    fn receive(
        &self,
        queue: BorrowedFd<'_>,
        buffers: &mut dyn Iterator<Item = &HostBuffer>,
        places: &mut Vec<Range<usize>>,
    ) -> io::Result<usize>;

    /// Sends all frames of `batch`, each behind its header. `lost` hears which were not sent, and why.
    fn send(
        &self,
        queue: BorrowedFd<'_>,
        batch: &mut Batch<'_, '_>,
        lost: &mut dyn FnMut(Range<usize>, &io::Error),
    );

    /// Whether `error`, of reading ([`Side::Tx`]) or writing ([`Side::Rx`]), says that the device is
    /// lost; otherwise one frame is.
    fn is_gone(&self, queue: BorrowedFd<'_>, side: Side, error: &io::Error) -> bool;
}
