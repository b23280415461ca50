//! The interface: a session with a back end, and its queue pairs.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use weir_guestmem::GuestMemory;
use weir_ring::{Addresses, DriverRing, RingConfig};
use weir_vhost_user::{DirtyLog, FrontEnd, Request, VHOST_VRING_F_LOG, VringAddr};
use weir_wire::Mac;

use crate::counters::Event;
use crate::error::VifError;
use crate::features::{Features, Options};
use crate::handshake::{Handshake, Vring, at};
use crate::memory::{Plan, SharedMemory, Slots};
use crate::pair::QueuePair;
use crate::receive::{Format, Receive};
use crate::transmit::{Transmit, TransmitPlan};

/// Longest time for a back end to stop one ring when the interface is dropped.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// The state of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// The back end serves the rings.
    Connected,
    /// The back end reported an error of a ring on its error eventfd.
    RingFailed,
    /// The back end closed the connection, or sent an unexpected message.
    Disconnected,
}

/// A guest's network interface, whose device is at the other end of a vhost-user socket.
///
/// Dropping it stops the rings (`GET_VRING_BASE`) and closes the connection. The queue pairs live
/// on their own; see [`queue_pairs`](Self::queue_pairs).
#[derive(Debug)]
pub struct Vif {
    pub(crate) front: FrontEnd,
    mac: Mac,
    pub(crate) features: Features,
    containers: bool,
    err: Event,
    pairs: Vec<QueuePair>,
    /// The options, for the next back end, too.
    options: Options,
    pub(crate) memory: SharedMemory,
    pub(crate) rings: Vec<Served>,
    pub(crate) log: Option<Log>,
}

/// A ring that a back end serves.
#[derive(Debug)]
pub(crate) struct Served {
    at: Addresses,
    kick: Event,
    call: Event,
}

/// Memory layout of one pair.
struct PairPlan {
    rx_ring: Addresses,
    tx_ring: Addresses,
    buffers: Slots,
    transmit: TransmitPlan,
}

impl PairPlan {
    fn new(plan: &mut Plan, options: &Options, features: Features, containers: bool) -> Self {
        let size = options.queue_size;
        let buffer_bytes = options.rx_buffer_bytes_for(features, containers);
        Self {
            rx_ring: plan.ring(size),
            tx_ring: plan.ring(size),
            buffers: Receive::plan(plan, size, buffer_bytes),
            transmit: TransmitPlan::new(plan, size),
        }
    }

    fn build(
        &self,
        memory: &Arc<GuestMemory>,
        options: &Options,
        features: Features,
        containers: bool,
    ) -> Result<QueuePair, VifError> {
        let config = features.ring(options.queue_size);
        let rx = Receive::new(
            Arc::clone(memory),
            DriverRing::new(memory, config, &self.rx_ring)?,
            Format { mergeable: features.contains(Features::MRG_RXBUF), containers },
            self.buffers,
            event()?,
            event()?,
        );
        let tx = Transmit::new(
            Arc::clone(memory),
            DriverRing::new(memory, config, &self.tx_ring)?,
            config.indirect,
            self.transmit,
            event()?,
            event()?,
        );
        let mut pair = QueuePair::new(options.mac, features, rx, tx);
        pair.set_poll_interval(options.poll_interval);
        if options.lro {
            pair.merge_segments(options.queue_size);
        }
        Ok(pair)
    }
}

impl Served {
    pub(crate) fn addresses(&self) -> Addresses {
        self.at
    }

    fn vring<'v>(&'v self, index: u32, config: RingConfig, base: u32, err: &'v Event) -> Vring<'v> {
        Vring { index, config, base, at: self.at, kick: &self.kick, call: &self.call, err }
    }

    /// Returns `used.idx` of a split ring (virtio 1.2 §2.7.8).
    fn used_index(&self, memory: &SharedMemory) -> u16 {
        let head = memory.memory.window(self.at.device, 4).expect("a ring is in the memory");
        head.load_acquire(2)
    }
}

fn front_end(stream: UnixStream, options: &Options) -> FrontEnd {
    let mut front = FrontEnd::new(stream);
    front.set_timeout(options.timeout);
    front
}

fn again(event: &Event) -> Result<Event, VifError> {
    event.again().map_err(|source| VifError::Os { call: "dup", source })
}

fn event() -> Result<Event, VifError> {
    Event::new().map_err(|errno| VifError::Os { call: "eventfd", source: errno.into() })
}

impl Vif {
    /// Connects to a back end that listens at `path`, and sets the session up.
    ///
    /// # Errors
    /// [`VifError`]; an error of the handshake names its step.
    pub fn connect(path: impl AsRef<Path>, options: &Options) -> Result<Self, VifError> {
        let path = path.as_ref();
        let stream = UnixStream::connect(path)
            .map_err(|source| VifError::Connect { path: path.to_owned(), source })?;
        Self::over(stream, options)
    }

    /// Waits for a back end that connects to `listener`, and sets the session up.
    pub fn accept(listener: &UnixListener, options: &Options) -> Result<Self, VifError> {
        let (stream, _) = listener.accept().map_err(VifError::Accept)?;
        Self::over(stream, options)
    }

    /// Sets the session up over a connected socket.
    pub fn over(stream: UnixStream, options: &Options) -> Result<Self, VifError> {
        options.check()?;
        let mut handshake = Handshake::negotiate(front_end(stream, options), options)?;
        let (features, containers) = (handshake.features, handshake.containers());

        let mut plan = Plan::new(options.has_low_memory);
        let plans: Vec<_> = (0..options.queues)
            .map(|_| PairPlan::new(&mut plan, options, features, containers))
            .collect();
        let memory = plan.build()?;
        handshake.share(&memory)?;

        let err = event()?;
        let mut pairs = Vec::with_capacity(plans.len());
        let mut rings = Vec::new();
        for plan in &plans {
            let pair = plan.build(&memory.memory, options, features, containers)?;
            let (rx, tx) = pair.halves();
            for (at, kick, call) in [
                (plan.rx_ring, rx.kick_event(), &rx.call),
                (plan.tx_ring, tx.kick_event(), &tx.call),
            ] {
                rings.push(Served { at, kick: again(kick)?, call: again(call)? });
            }
            pairs.push(pair);
        }
        let base = features.ring(options.queue_size).fresh_base();
        for (index, ring) in (0..).zip(&rings) {
            handshake.set_vring(&ring.vring(
                index,
                features.ring(options.queue_size),
                base,
                &err,
            ))?;
        }
        let front = handshake.finish(rings.len() as u32)?;
        pairs.iter_mut().for_each(QueuePair::start);
        let (mac, options) = (options.mac, options.clone());
        let log = None;
        Ok(Self { front, mac, features, containers, err, pairs, options, memory, rings, log })
    }

    /// Starts a session with a new back end, as QEMU does. Rings continue at their present
    /// position. A split ring continues at the used index in its memory. A packed ring's memory
    /// holds no such index: the back end gets the original base and must find the position itself.
    /// The queue pairs notice nothing. A present back end stops its rings first, as in a migration.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); the next back end may be tried.
    pub fn reconnect(&mut self, stream: UnixStream) -> Result<(), VifError> {
        self.stop();
        let mut handshake = Handshake::negotiate(front_end(stream, &self.options), &self.options)?;
        let missing = self.features - handshake.features;
        if missing != Features::NONE {
            return Err(VifError::Required { missing });
        }
        handshake.share(&self.memory)?;
        let config = self.features.ring(self.options.queue_size);
        for (index, ring) in (0..).zip(&self.rings) {
            let base = match config.packed {
                true => config.fresh_base(),
                false => ring.used_index(&self.memory).into(),
            };
            handshake.set_vring(&ring.vring(index, config, base, &self.err))?;
        }
        self.front = handshake.finish(self.rings.len() as u32)?;
        Ok(())
    }

    /// Returns the queue pairs, in order, for the threads that use them. Later calls return none.
    ///
    /// The pairs hold the interface's memory, which is unmapped when the last of them is dropped.
    pub fn queue_pairs(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.pairs)
    }

    /// Returns the interface's address.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Returns the negotiated features.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Returns true if the back end may put containers of several frames into receive buffers.
    pub fn containers(&self) -> bool {
        self.containers
    }

    /// Announces the guest's address (`SEND_RARP`): the back end sends a RARP broadcast for it, as
    /// after a live migration.
    ///
    /// # Errors
    /// The back end's error.
    pub fn send_rarp(&mut self) -> Result<(), weir_vhost_user::FrontEndError> {
        self.front.send_rarp(self.mac.0)
    }

    /// Returns the state of the session, without waiting.
    ///
    /// # Errors
    /// The error of `poll`.
    pub fn health(&self) -> io::Result<Health> {
        let mut fds = [
            PollFd::new(&self.front, PollFlags::IN),
            PollFd::from_borrowed_fd(self.err.as_fd(), PollFlags::IN),
        ];
        poll(&mut fds, Some(&Timespec::default()))?;
        Ok(if !fds[0].revents().is_empty() {
            // Between requests only the end of the connection is readable.
            Health::Disconnected
        } else if !fds[1].revents().is_empty() {
            Health::RingFailed
        } else {
            Health::Connected
        })
    }
}

impl Drop for Vif {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Vif {
    fn stop(&mut self) {
        self.front.set_timeout(STOP_TIMEOUT);
        for ring in 0..self.rings.len() as u32 {
            // A disconnected back end has stopped its rings.
            if self.front.get_vring_base(ring).is_err() {
                break;
            }
        }
    }
}

/// `VHOST_F_LOG_ALL`: the back end logs its writes into buffers.
const LOG_ALL: u64 = 1 << 26;
/// Guest memory per bit (bytes).
const PAGE: u64 = 4096;

/// The log: one bit for each page from address 0 on.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    len: u64,
}

impl Log {
    fn new(memory_end: u64) -> Result<Self, VifError> {
        let len = memory_end.div_ceil(8 * PAGE).next_multiple_of(PAGE);
        let os = |call| move |errno: rustix::io::Errno| VifError::Os { call, source: errno.into() };
        let fd = memfd_create("weir-vif-log", MemfdFlags::CLOEXEC).map_err(os("memfd_create"))?;
        ftruncate(&fd, len).map_err(os("ftruncate"))?;
        Ok(Self { file: File::from(fd), len })
    }
}

impl Vif {
    /// Turns the back end's log of writes into the interface's memory on or off, while the rings
    /// run.
    ///
    /// # Errors
    /// [`VifError::Handshake`]: the back end has no dirty logs, or reports a failure.
    pub fn log_writes(&mut self, on: bool) -> Result<(), VifError> {
        if on && self.log.is_none() {
            self.log = Some(Log::new(self.memory.end())?);
        }
        if let Some(log) = self.log.as_ref().filter(|_| on) {
            let place = DirtyLog { size: log.len, offset: 0 };
            let result = self.front.set_log_base(place, log.file.as_fd());
            at(Request::SetLogBase, None, result)?;
        }
        let features = self.features.0 | if on { LOG_ALL } else { 0 };
        at(Request::SetFeatures, None, self.front.set_features(features))?;
        for (index, ring) in (0..).zip(&self.rings) {
            let to = ring.addresses();
            let addr = VringAddr {
                index,
                flags: if on { VHOST_VRING_F_LOG } else { 0 },
                descriptor: to.descriptor,
                used: to.device,
                available: to.driver,
                log: self.memory.guest_address(to.device),
            };
            at(Request::SetVringAddr, Some(index), self.front.set_vring_addr(addr))?;
        }
        Ok(())
    }

    /// Counts the pages in the log, and clears it. Concurrent writes may be missed: this suffices for a measurement,
    /// not for a migration.
    ///
    /// # Errors
    /// The log cannot be read or written.
    pub fn clear_log(&self) -> io::Result<u64> {
        let Some(log) = &self.log else { return Ok(0) };
        let mut bytes = vec![0; log.len as usize];
        log.file.read_exact_at(&mut bytes, 0)?;
        let mut pages = 0;
        for (index, byte) in bytes.iter().enumerate().filter(|(_, byte)| **byte != 0) {
            pages += u64::from(byte.count_ones());
            log.file.write_all_at(&[0], index as u64)?;
        }
        Ok(pages)
    }
}
