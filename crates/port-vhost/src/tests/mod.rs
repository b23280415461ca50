//! A switch with front ends that these tests write themselves, request by request.

mod calls;
mod containers;
mod fair;
mod front_ends;
mod hostile;
mod inflight;
mod iommu;
mod kept;
mod migration;
mod moderation;
mod queues;
mod session;
mod steering;
mod traffic;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use weir_engine::{CpuClock, Engine, Options as EngineOptions};
use weir_fabric::PortConfig;
use weir_guestmem::{GuestMemory, RegionSpec, Window};
use weir_limits::PARKED_NS_MAX;
use weir_policy::moderation::Kind;
use weir_ring::{Addresses, Buffer, DriverRing, Used};
use weir_vhost_user::{FrontEnd, FrontEndError, MemoryRegion, VringAddr};
use weir_wire::{Offload, VnetHdr};

use crate::features::{Features, OFFERED};
use crate::{Endpoint, Manager, VhostOptions, VhostPort};
use weir_engine::guest::{CallPolicy, GuestDevice, GuestPort, State};

pub(crate) const F_PROTOCOL: u64 = 1 << weir_vhost_user::VHOST_USER_F_PROTOCOL_FEATURES;
pub(crate) const REPLY_ACK: u64 = 1 << weir_vhost_user::VHOST_USER_PROTOCOL_F_REPLY_ACK;

const CONTAINERS: u64 = 1 << weir_vhost_user::VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS;

pub(crate) const RING_PACKED: u64 = 1 << 34;
pub(crate) const IN_ORDER: u64 = 1 << 35;

pub(crate) const LOG_ALL: u64 = 1 << 26;

pub(crate) const DEVICE: GuestDevice =
    GuestDevice { mac: [2, 0, 0, 0, 0, 9], mtu: 1500, access_platform: false };

/// The features that a plain modern driver with split rings acknowledges.
pub(crate) fn modern() -> u64 {
    OFFERED & !(RING_PACKED | IN_ORDER | LOG_ALL)
}

/// The modern features with each format of rings.
pub(crate) fn formats() -> [u64; 4] {
    [0, RING_PACKED, IN_ORDER, RING_PACKED | IN_ORDER].map(|format| modern() | format)
}

pub(crate) struct Switch {
    pub manager: Manager,
    pub engine: Arc<Engine>,
}

impl Switch {
    pub fn new() -> Self {
        Self::with_workers(1)
    }

    pub fn with_workers(workers: usize) -> Self {
        Self::with_options(EngineOptions { workers, ..EngineOptions::default() })
    }

    pub fn with_options(options: EngineOptions) -> Self {
        let engine = Engine::start_with(options).unwrap();
        let manager = Manager::start(Arc::clone(&engine)).unwrap();
        Self { manager, engine }
    }

    /// A port, and the front end's side of its socket.
    pub fn port(&self) -> (Arc<VhostPort>, UnixStream) {
        self.port_with(|port| port)
    }

    pub fn port_with(
        &self,
        more: impl FnOnce(VhostPort) -> VhostPort,
    ) -> (Arc<VhostPort>, UnixStream) {
        let options = VhostOptions {
            name: "test".into(),
            queue_pairs: 2,
            calls: CallPolicy::within(Kind::Immediate, 250_000),
            device: DEVICE,
        };
        let (_, port) = self
            .engine
            .add_port(PortConfig::vif(), |id, counters| {
                Arc::new(more(VhostPort::new(id, counters, &options)))
            })
            .unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.manager.add(Arc::clone(&port), Endpoint::Connected(ours)).unwrap();
        (port, theirs)
    }

    /// A port with a guest that is up.
    pub fn guest(&self, mac: u8, features: u64) -> Guest {
        self.guest_with_rings(mac, features, SIZE)
    }

    /// A port with a guest whose rings have `size` entries, at most [`SIZE_MAX`].
    pub fn guest_with_rings(&self, mac: u8, features: u64, size: u16) -> Guest {
        let (port, stream) = self.port();
        let mut guest = Guest::with_rings(port, stream, mac, features, size);
        guest.set_up().unwrap();
        guest.start();
        guest
    }
}

/// The longest wait before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something that another thread does. The bound is only there for a test that fails.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never happened: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Tries until nothing is lost. A frame that waits for its receiver is dropped eventually, and on a
/// busy machine a test may be too late for the frame. No frame may be lost earlier than that.
pub(crate) fn until_none_is_late(mut loses_none: impl FnMut() -> bool) {
    for _ in 0..100 {
        let start = Instant::now();
        if loses_none() {
            return;
        }
        assert_has_waited(start);
    }
    panic!("this thread is always late");
}

/// Checks that frames lost since `start` had time to wait as long as a frame may.
pub(crate) fn assert_has_waited(start: Instant) {
    let took = start.elapsed();
    assert!(took >= Duration::from_nanos(PARKED_NS_MAX), "a frame was lost after {took:?}");
}

/// The number of frames between two ports that were dropped, for whatever reason.
pub(crate) fn lost(ports: [&VhostPort; 2]) -> u64 {
    ports.iter().flat_map(|port| port.counters().drops()).map(|(_, count)| count).sum()
}

pub(crate) const SIZE: u16 = 64;
/// The largest ring of most tests. The areas of [`ring_at`] have room for 1024 entries.
pub(crate) const SIZE_MAX: u16 = 256;
pub(crate) const MEMORY: u64 = 8 << 20;
/// Guest address = offset in the memfd; user address = that plus this.
pub(crate) const USER: u64 = 0x7f00_0000_0000;
const BUFFER: u64 = 2048;
const RX_BUFFERS: u64 = 1 << 20;
pub(crate) const TX_BUFFERS: u64 = 4 << 20;

/// Ring areas of vring `index`.
pub(crate) fn ring_at(index: u64) -> Addresses {
    let base = USER + index * 0x1_0000;
    Addresses { descriptor: base, driver: base + 0x4000, device: base + 0x5000 }
}

/// One guest with one queue pair.
pub(crate) struct Guest {
    pub port: Arc<VhostPort>,
    pub front: FrontEnd,
    pub mac: [u8; 6],
    pub features: u64,
    /// The guest accepts containers.
    pub unpacks: bool,
    /// Added to its guest-physical addresses by a virtual IOMMU.
    pub shift: Option<u64>,
    size: u16,
    pub memfd: File,
    pub memory: Arc<GuestMemory>,
    pub rx: DriverRing,
    pub tx: DriverRing,
    pub kicks: [OwnedFd; 2],
    pub calls: [OwnedFd; 2],
    /// The address of each chain's receive buffer, and the free addresses.
    rx_at: Vec<u64>,
    rx_free: Vec<u64>,
}

impl Guest {
    pub fn new(port: Arc<VhostPort>, stream: UnixStream, mac: u8, features: u64) -> Self {
        Self::with_rings(port, stream, mac, features, SIZE)
    }

    pub fn with_rings(
        port: Arc<VhostPort>,
        stream: UnixStream,
        mac: u8,
        features: u64,
        size: u16,
    ) -> Self {
        let memfd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memfd, MEMORY).unwrap();
        let memfd = File::from(memfd);
        let spec =
            RegionSpec { guest_address: 0, size: MEMORY, user_address: USER, mmap_offset: 0 };
        let mapped = GuestMemory::map(&[(spec, memfd.try_clone().unwrap())]).unwrap();
        let memory = Arc::new(mapped);
        let config = Features(features).ring(size);
        let ring = |index| DriverRing::new(&memory, config, &ring_at(index)).unwrap();
        let fd = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let mut front = FrontEnd::new(stream);
        front.set_timeout(PATIENCE);
        Self {
            port,
            front,
            mac: [0x52, 0x54, 0, 0, 0, mac],
            features,
            unpacks: false,
            shift: None,
            rx: ring(0),
            tx: ring(1),
            memfd,
            memory,
            kicks: [fd(), fd()],
            calls: [fd(), fd()],
            size,
            rx_at: vec![0; size.into()],
            rx_free: (0..u64::from(size)).map(|i| RX_BUFFERS + i * BUFFER).collect(),
        }
    }

    pub fn region() -> MemoryRegion {
        MemoryRegion { guest_address: 0, size: MEMORY, user_address: USER, mmap_offset: 0 }
    }

    /// Sets up everything; the kick descriptors come last.
    pub fn set_up(&mut self) -> Result<(), FrontEndError> {
        self.negotiate()?;
        self.front.set_mem_table(&[(Self::region(), self.memfd.as_fd())])?;
        for index in 0..2 {
            self.vring(index)?;
            self.front.set_vring_call(index, Some(self.calls[index as usize].as_fd()))?;
            self.front.set_vring_kick(index, Some(self.kicks[index as usize].as_fd()))?;
            if self.features & F_PROTOCOL != 0 {
                self.front.set_vring_enable(index, true)?;
            }
        }
        Ok(())
    }

    pub fn negotiate(&mut self) -> Result<(), FrontEndError> {
        self.front.get_features()?;
        if self.features & F_PROTOCOL != 0 {
            let offered = self.front.get_protocol_features()?;
            let refused = if self.unpacks { 0 } else { CONTAINERS };
            self.front.set_protocol_features(offered & !refused)?;
        }
        self.front.set_owner()?;
        self.front.set_features(self.features)
    }

    pub fn vring(&mut self, index: u32) -> Result<(), FrontEndError> {
        self.front.set_vring_num(index, self.size.into())?;
        let fresh = Features(self.features).ring(self.size).fresh_base();
        self.front.set_vring_base(index, fresh)?;
        let at = self.stated(index);
        self.front.set_vring_addr(VringAddr {
            index,
            flags: 0,
            descriptor: at.descriptor,
            used: at.device,
            available: at.driver,
            log: 0,
        })
    }

    /// The addresses of a ring as its front end states them.
    fn stated(&self, index: u32) -> Addresses {
        let Addresses { descriptor, driver, device } = ring_at(index.into());
        let [descriptor, driver, device] =
            [descriptor, driver, device].map(|at| self.shift.map_or(at, |shift| at - USER + shift));
        Addresses { descriptor, driver, device }
    }

    /// Fills the receive ring and kicks both rings for the first time.
    pub fn start(&mut self) {
        self.post(self.size);
        self.kick(0);
        self.kick(1);
        let port = Arc::clone(&self.port);
        eventually("the rings start", || port.info().state == State::Running);
    }

    pub fn kick(&self, ring: usize) {
        rustix::io::write(&self.kicks[ring], &1u64.to_ne_bytes()).unwrap();
    }

    /// The number of calls since the last time.
    pub fn calls(&self, ring: usize) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(&self.calls[ring], &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    /// Offers `count` receive buffers of 2 KiB.
    pub fn post(&mut self, count: u16) {
        for _ in 0..count {
            let address = self.rx_free.pop().expect("a free receive buffer");
            let at = address + self.shift.unwrap_or(0);
            let buffer = Buffer { address: at, len: BUFFER as u32, writable: true };
            let head = self.rx.offer(&[buffer]).expect("a free descriptor");
            self.rx_at[usize::from(head)] = address;
        }
        if self.rx.publish() {
            self.kick(0);
        }
    }

    /// Puts a frame into the transmit ring, header and frame in one buffer; `slot` chooses where.
    pub fn offer(&mut self, slot: u64, vnet: &VnetHdr, frame: &[u8]) {
        self.offer_at(TX_BUFFERS + slot * 0x11000, vnet, frame);
    }

    /// Puts a frame into the transmit ring, with its buffer at `address`.
    pub fn offer_at(&mut self, address: u64, vnet: &VnetHdr, frame: &[u8]) {
        let len = (VnetHdr::LEN + frame.len()) as u32;
        let at = self.memory.slice(address, len).unwrap();
        at.write(&vnet.to_bytes());
        at.skip(VnetHdr::LEN).write(frame);
        let address = address + self.shift.unwrap_or(0);
        self.tx.offer(&[Buffer { address, len, writable: false }]).unwrap();
    }

    pub fn send_now(&mut self) {
        if self.tx.publish() {
            self.kick(1);
        }
    }

    /// Sends a plain frame.
    pub fn send(&mut self, frame: &[u8]) {
        self.offer(0, &VnetHdr::default(), frame);
        self.send_now();
        self.reap();
    }

    /// Waits until the switch has given all transmit buffers back.
    pub fn reap(&mut self) {
        let tx = &mut self.tx;
        eventually("transmit buffers come back", || {
            while tx.take().is_some() {}
            tx.in_flight() == 0
        });
    }

    /// The next received frame, if one is there: its header and its bytes.
    pub fn received(&mut self) -> Option<(VnetHdr, Vec<u8>)> {
        let Used { head, written } = self.rx.take()?;
        let mut bytes = self.buffer(head, written);
        let vnet = VnetHdr::from_bytes(bytes[..12].try_into().unwrap());
        for _ in 1..vnet.num_buffers {
            let next = self.rx.take().expect("merged buffers are published together");
            bytes.extend(self.buffer(next.head, next.written));
        }
        Some((vnet, bytes[12..].to_vec()))
    }

    fn buffer(&mut self, head: u16, written: u32) -> Vec<u8> {
        let mut bytes = vec![0; written as usize];
        let address = self.rx_at[usize::from(head)];
        self.rx_free.push(address);
        self.memory.slice(address, written).unwrap().read(&mut bytes);
        bytes
    }

    pub fn wait_received(&mut self) -> (VnetHdr, Vec<u8>) {
        let mut frame = None;
        eventually("a frame arrives", || {
            frame = self.received();
            frame.is_some()
        });
        frame.unwrap()
    }

    /// Waits for the next frame; `None` once a frame of `sender` is lost.
    pub fn wait_received_or_lost(&mut self, sender: &VhostPort) -> Option<(VnetHdr, Vec<u8>)> {
        let port = Arc::clone(&self.port);
        let mut frame = None;
        eventually("a frame arrives, or is lost", || {
            frame = self.received();
            frame.is_some() || lost([sender, &port]) > 0
        });
        frame
    }

    pub fn raw(&self) -> Window {
        self.memory.window(USER, MEMORY as usize).unwrap()
    }
}

/// A frame from one guest to another (or to all), `len` bytes, numbered.
pub(crate) fn frame(from: &Guest, to: Option<&Guest>, len: usize, number: u8) -> Vec<u8> {
    let mut frame = vec![number; len.max(15)];
    frame[..6].copy_from_slice(&to.map_or([0xff; 6], |guest| guest.mac));
    frame[6..12].copy_from_slice(&from.mac);
    frame[12..14].copy_from_slice(&0x88b5u16.to_be_bytes()); // local experimental ethertype
    frame
}

/// Lets the switch learn where both guests are.
pub(crate) fn introduce(a: &mut Guest, b: &mut Guest) {
    fn hello(from: &mut Guest, to: &mut Guest) {
        let hello = frame(from, None, 60, 0);
        from.send(&hello);
        assert_eq!(to.wait_received(), (Offload::NONE.to_vnet(1), hello));
    }
    hello(a, b);
    hello(b, a);
}
