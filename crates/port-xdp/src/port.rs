//! An interface, as the engine sees it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use weir_engine::burst::{Burst, Scratch};
use weir_engine::egress::{Emitted, Put, emit};
use weir_engine::guest::TransmitCalls;
use weir_engine::queue::TransmitQueue;
use weir_engine::{
    Ask, Delivered, DropReason, Forward, Outgoing, Port, PortCounters, Side, Taken, clock, lock,
};
use weir_limits::{XDP_CHUNKS_MAX, XDP_SEND_RETRY_NS};
use weir_policy::steering::{Mark, Receiver, Steering};
use weir_port_tap::{FromDevice, Service, Uncalled, UplinkPort};
use weir_wire::OffloadCaps;

use crate::device::{Held, XdpInterface};
use crate::rx::{RxQueue, Sent};
use crate::socket::XdpSocket;
use crate::tx::{Chunks, Places, SocketQueue};

/// An [`XdpInterface`] as a port of the switch.
///
/// The fields are dropped in this order: the watch on a socket ends before the socket closes, and no frame is on
/// its way to a closed one.
pub struct XdpPort {
    service: Service,
    _held: Held,
    queues: Vec<Queue>,
    steering: Steering,
    /// Bytes of the longest frame of the interface.
    frame_len_max: usize,
}

/// One queue, both directions.
struct Queue {
    tx: TransmitQueue<Places>,
    rx: Mutex<RxQueue>,
    socket: XdpSocket,
}

impl XdpPort {
    /// A port on `interface` with these counters.
    pub fn new(interface: XdpInterface, counters: Arc<PortCounters>) -> Self {
        let XdpInterface { info, steering, held, queues } = interface;
        let frame_len_max = info.frame_len_max();
        let queues = queues.into_iter().map(|(socket, rings)| Queue {
            tx: TransmitQueue::new(
                Uncalled(Chunks::new(rings.fill, rings.received)),
                TransmitCalls::default(),
            ),
            rx: Mutex::new(RxQueue::new(rings.transmit, rings.completed, socket.umem.departures())),
            socket,
        });
        let queues = queues.collect();
        let service = Service::new(info.name, counters);
        Self { service, _held: held, queues, steering, frame_len_max }
    }

    fn transmit(
        &self,
        index: usize,
    ) -> Option<(&TransmitQueue<Places>, FromDevice<SocketQueue<'_>>)> {
        let Queue { tx, socket, .. } = self.queues.get(index)?;
        Some((tx, FromDevice(SocketQueue { service: &self.service, index, socket })))
    }

    /// Offers the kernel the frames of `rx`. Returns the time of the next attempt, if one is needed and the engine does
    /// not know it yet.
    fn announce(&self, rx: &mut RxQueue, socket: &XdpSocket) -> Option<u64> {
        match rx.announce(socket) {
            Sent::All | Sent::LinkDown => None,
            Sent::Later if rx.retrying => None,
            Sent::Later => {
                rx.retrying = true;
                Some(clock::now_ns().saturating_add(XDP_SEND_RETRY_NS))
            }
            Sent::Gone(error) => {
                self.service.gone(&error);
                None
            }
        }
    }
}

impl Port for XdpPort {
    fn take(&self, queue: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken {
        let Some((tx, source)) = self.transmit(queue) else { return Taken::default() };
        self.take_from((tx, &source), ask, scratch, forward)
    }

    fn deliver(&self, queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        let Some(Queue { rx, socket, .. }) = self.queues.get(queue) else {
            self.service.counters().dropped(DropReason::RxNotReady, frames.len() as u64);
            return Delivered { frames: frames.len(), ..Delivered::default() };
        };
        let longest = self.frame_len_max.min((XDP_CHUNKS_MAX * socket.umem.chunk_len()) as usize);
        let mut rx = lock(rx);
        rx.reclaim();
        let (mut packets, mut bytes) = (0, 0);
        let mut dealt_with = 0;
        for outgoing in frames {
            if let Some(frame) = burst.frames().get(usize::from(outgoing.frame)) {
                let emitted = emit(burst, frame, outgoing.tag, OffloadCaps::NONE, |packet| {
                    if packet.len() > longest {
                        self.service.counters().dropped(DropReason::DeviceError, 1);
                        return Put::Refused;
                    }
                    if !rx.put(socket, &packet) {
                        return Put::Full;
                    }
                    packets += 1;
                    bytes += packet.len() as u64;
                    Put::Done
                });
                match emitted {
                    Ok(Emitted::Full) => break,
                    Ok(Emitted::Done { lost }) => {
                        self.service.counters().dropped(DropReason::RxRingFull, u64::from(lost));
                    }
                    Err(reason) => self.service.counters().dropped(reason, 1),
                }
            }
            dealt_with += 1;
        }
        if let Some(counters) = self.service.counters().rx.get(queue) {
            counters.frames.add(packets);
            counters.bytes.add(bytes);
        }
        let hold_until = if rx.has_unannounced() { self.announce(&mut rx, socket) } else { None };
        // The kernel does not notify weir of free chunks: there is nothing to wait for.
        Delivered { frames: dealt_with, hold_until, ..Delivered::default() }
    }

    fn expired(&self, queue: usize, _side: Side, _by_ns: u64) -> Option<u64> {
        let Queue { rx, socket, .. } = self.queues.get(queue)?;
        let mut rx = lock(rx);
        rx.retrying = false;
        self.announce(&mut rx, socket)
    }

    fn arm_tx(&self, queue: usize) -> bool {
        // The queue is always armed: the kernel wakes the socket's watchers after each batch of frames. This poll sees
        // earlier frames; later ones give a kick.
        self.transmit(queue).is_some_and(|(tx, source)| self.arm(tx, &source))
    }

    fn share_tx(&self, queue: usize, on: bool) -> bool {
        self.queues.get(queue).is_some_and(|Queue { tx, .. }| {
            tx.set_side_by_side(on);
            true
        })
    }

    fn is_uplink(&self) -> bool {
        true
    }

    fn kicked(&self, queue: usize, side: Side) {
        self.service.kicked(queue, side);
    }

    fn rx_queues(&self) -> usize {
        if self.service.has_failed() { 0 } else { self.queues.len() }
    }

    fn steering(&self) -> Option<&Steering> {
        Some(&self.steering)
    }

    fn fail(&self, reason: &str) {
        self.service.fail(reason);
    }
}

impl Receiver for XdpPort {
    fn mark(&self, queue: usize) -> Mark {
        let placed = self.queues.get(queue).map_or(0, |queue| lock(&queue.rx).put_total());
        Mark { placed, event: None }
    }

    /// The kernel gives chunks back in the order in which it has sent them.
    fn has_taken(&self, queue: usize, placed: u64, _before: Mark) -> bool {
        self.queues.get(queue).is_none_or(|queue| {
            let mut rx = lock(&queue.rx);
            rx.reclaim();
            rx.sent_total() >= placed
        })
    }
}

impl UplinkPort for XdpPort {
    fn service(&self) -> &Service {
        &self.service
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.queues.iter().map(|queue| queue.socket.fd.as_fd()).collect()
    }
}

impl std::fmt::Debug for XdpPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XdpPort")
            .field("interface", &self.service.name())
            .field("failure", &self.failure())
            .finish()
    }
}
