//! What a TAP's queues and a packet socket have in common: one frame per system call, with a
//! `virtio_net_hdr` before it.

use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use weir_engine::Side;
use weir_guestmem::HostBuffer;
use weir_limits::FRAME_LEN_MAX;
use weir_policy::steering::Steering;
use weir_wire::vlan::TAG_LEN;
use weir_wire::{OffloadCaps, VnetHdr};

/// Bytes of a frame buffer: a VLAN tag that the device gives separately, the header, the longest frame, and one
/// more byte. A read that fills the buffer was truncated, and [`Burst::add`](weir_engine::burst::Burst::add) finds
/// the frame too long.
pub const SLOT_LEN: usize = TAG_LEN + VnetHdr::LEN + FRAME_LEN_MAX as usize + 1;

/// A device that a [`FramePort`](crate::FramePort) serves. A frame toward it is one `writev` of the
/// header and the frame.
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

    /// Reads the next frame into `buffer`, of [`SLOT_LEN`] bytes: where in it header and frame are.
    ///
    /// # Errors
    /// `WouldBlock`: there is none. `Interrupted`: it is worth asking again. Any other means a lost
    /// frame, if not a lost device: see [`is_gone`](Self::is_gone).
    fn receive(&self, queue: BorrowedFd<'_>, buffer: &HostBuffer) -> io::Result<Range<usize>>;

    /// Whether `error`, of reading ([`Side::Tx`]) or writing ([`Side::Rx`]), says that the device is
    /// lost; otherwise one frame is.
    fn is_gone(&self, queue: BorrowedFd<'_>, side: Side, error: &io::Error) -> bool;
}
