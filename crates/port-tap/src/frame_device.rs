//! The common part of a TAP's queues and a packet socket: one frame per system call, with a `virtio_net_hdr` before it.

use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use weir_engine::Side;
use weir_engine::egress::Packet;
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

    /// The choice of the queue for a flow's frames.
    fn steering(&self) -> &Steering;

    /// The offloads that the device accepts undone in frames from weir.
    fn offloads(&self) -> OffloadCaps;

    /// Bytes of the `virtio_net_hdr`: 12, or 10 without `num_buffers`.
    fn vnet_len(&self) -> usize;

    /// Reads frames by one system call, one into each of `buffers`, in order, which have [`SLOT_LEN`] bytes. `places`
    /// gets the place of header and frame in each. Returns the number of frames that it could have read: if `places`
    /// got fewer, there are no more.
    ///
    /// # Errors
    /// `WouldBlock`: there is no frame. `Interrupted`: another call is worthwhile. Any other error means a lost frame,
    /// if not a lost device: see [`is_gone`](Self::is_gone).
    fn receive(
        &self,
        queue: BorrowedFd<'_>,
        buffers: &mut dyn Iterator<Item = &HostBuffer>,
        places: &mut Vec<Range<usize>>,
    ) -> io::Result<usize>;

    /// The bytes before a packet that is sent, in `room`: its `virtio_net_hdr`. `None` if the device may not get it.
    fn prefix<'r>(
        &self,
        packet: &Packet<'_, '_>,
        room: &'r mut [u8; VnetHdr::LEN],
    ) -> Option<&'r [u8]> {
        *room = packet.offload.to_vnet(0).to_bytes();
        room.get(..self.vnet_len())
    }

    /// Sends all frames of `batch`, each behind its header. `lost` gets those that were not sent, and the reason.
    fn send(
        &self,
        queue: BorrowedFd<'_>,
        batch: &mut Batch<'_, '_>,
        lost: &mut dyn FnMut(Range<usize>, &io::Error),
    );

    /// True if `error`, of reading ([`Side::Tx`]) or writing ([`Side::Rx`]), means that the device is lost; otherwise
    /// one frame is lost.
    fn is_gone(&self, queue: BorrowedFd<'_>, side: Side, error: &io::Error) -> bool;

    /// The reason why nothing passes at present, for a device that comes back by itself.
    fn trouble(&self) -> Option<String> {
        None
    }
}
