//! A guest that is set up like an honest one, and then breaks the rules.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use rustix::event::{EventfdFlags, eventfd};

use super::{
    Strike,
    frame::{HEADER_LEN, Header, Mac},
    harm,
    link::{self, Link, readable, request},
    memory::Memory,
    ring::{RING_LEN, Ring, WRITE},
};

/// Features (virtio 1.2 §5.1.3, §6).
pub const VERSION_1: u64 = 1 << 32;
/// `VIRTIO_F_EVENT_IDX`: calls and kicks by index.
pub const EVENT_IDX: u64 = 1 << 29;
/// `VIRTIO_F_INDIRECT_DESC`: tables of descriptors.
pub const INDIRECT_DESC: u64 = 1 << 28;
/// `VIRTIO_F_RING_PACKED`.
pub const PACKED: u64 = 1 << 34;
/// `VIRTIO_F_IN_ORDER`: buffers are used in order.
pub const IN_ORDER: u64 = 1 << 35;
/// Partial checksums and TCP segmentation for sent frames.
pub const SEND_OFFLOADS: u64 = 1 | 1 << 11 | 1 << 12 | 1 << 56;
/// `VIRTIO_F_ACCESS_PLATFORM`: the VM has a virtual IOMMU.
pub const ACCESS_PLATFORM: u64 = 1 << 33;
/// `VIRTIO_NET_F_MRG_RXBUF`: a frame may span receive buffers.
pub const MRG_RXBUF: u64 = 1 << 15;
/// `VIRTIO_NET_F_MQ`: several queues.
pub const MQ: u64 = 1 << 22;
/// `VHOST_USER_F_PROTOCOL_FEATURES`.
pub const PROTOCOL: u64 = 1 << 30;

/// `VHOST_F_LOG_ALL`.
pub const LOG_ALL: u64 = 1 << 26;

/// Protocol features: several queues, shared log, acknowledgements, a channel for weir's requests, memory slots, status,
/// reset.
const PROTOCOL_FEATURES: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 13 | 1 << 15 | 1 << 16;

/// The memory's guest address.
pub const GUEST: u64 = 0x1_0000_0000;
/// The memory's user address, by which rings are addressed.
pub const USER: u64 = 0x7000_0000_0000;
/// The offset of the buffers in memory, behind the space for all rings.
pub const BUFFERS: usize = 1 << 20;
/// The distance between two buffers (bytes).
pub const STRIDE: usize = 4096;

/// The parameters of a guest.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Device features.
    pub features: u64,
    /// Queue pairs.
    pub pairs: u32,
    /// Entries of each ring.
    pub size: u16,
    /// Bytes of memory.
    pub memory: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            features: VERSION_1 | PROTOCOL | MRG_RXBUF | INDIRECT_DESC | SEND_OFFLOADS,
            pairs: 1,
            size: 256,
            memory: 8 << 20,
        }
    }
}

impl Plan {
    /// The usual features and packed rings.
    pub fn packed() -> Self {
        let usual = Self::default();
        Self { features: usual.features | PACKED, ..usual }
    }
}

/// A guest. Even rings receive and odd rings transmit.
#[derive(Debug)]
pub struct Guest {
    /// The guest's connection.
    pub link: Link,
    /// The guest's memory.
    pub memory: Memory,
    /// Kick descriptors by ring.
    pub kicks: Vec<OwnedFd>,
    /// Call descriptors by ring.
    pub calls: Vec<OwnedFd>,
    /// Error descriptors by ring.
    pub errs: Vec<OwnedFd>,
    plan: Plan,
}

impl Guest {
    /// Connects and negotiates features. No memory is shared yet.
    pub fn negotiate(path: &Path, plan: Plan) -> Strike<Self> {
        let memory = Memory::new(plan.memory)?;
        let events = || -> Strike<Vec<OwnedFd>> {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            (0..2 * plan.pairs).map(|_| Ok(eventfd(0, flags)?)).collect()
        };
        let (kicks, calls, errs) = (events()?, events()?, events()?);
        let link = Link::connect(path)?;
        link.ask(request::GET_FEATURES)?;
        link.tell_u64(request::SET_PROTOCOL_FEATURES, PROTOCOL_FEATURES)?;
        link.tell(request::SET_OWNER, &[], &[])?;
        let several = if plan.pairs > 1 { MQ } else { 0 };
        link.tell_u64(request::SET_FEATURES, plan.features | several)?;
        Ok(Self { link, memory, kicks, calls, errs, plan })
    }

    /// Negotiates, shares the memory, starts all rings with posted receive buffers, and waits for weir's
    /// acknowledgement.
    pub fn attach(path: &Path, plan: Plan) -> Strike<Self> {
        let guest = Self::negotiate(path, plan)?;
        guest.start()?;
        Ok(guest)
    }

    /// Shares the memory and starts all rings, as [`Self::attach`] does.
    pub fn start(&self) -> Strike {
        self.share()?;
        for ring in 0..self.rings() {
            self.fill(ring);
            self.serve(ring)?;
            self.kick(ring);
        }
        self.link.ask(request::GET_FEATURES)?;
        Ok(())
    }

    /// Reports a translation of a virtual IOMMU: `kind` is 2 for a new one, and 3 for the end of
    /// one. Returns weir's answer.
    pub fn translate(&self, kind: u8, iova: u64, size: u64, user: u64, access: u8) -> Strike<u64> {
        let mut body = [iova, size, user].map(u64::to_le_bytes).concat();
        body.extend([access, kind, 0, 0, 0, 0, 0, 0]);
        self.link.acked(request::IOTLB_MSG, &body, &[])
    }

    /// Translates rings and buffers as if there were no IOMMU.
    pub fn translate_all(&self) -> Strike {
        let len = self.memory.len() as u64;
        for at in [GUEST, USER] {
            self.translate(2, at, len, USER, 3)?;
        }
        Ok(())
    }

    /// Number of rings.
    pub fn rings(&self) -> u32 {
        2 * self.plan.pairs
    }

    /// The memory region's description.
    pub fn region(&self) -> Vec<u8> {
        link::region(GUEST, self.memory.len() as u64, USER, 0)
    }

    /// Shares the memory.
    pub fn share(&self) -> Strike {
        self.link.tell(
            request::SET_MEM_TABLE,
            &link::table(&[self.region()]),
            &[self.memory.file()],
        )
    }

    /// The body of `SET_VRING_ADDR` with the addresses `[descriptors, driver, device]`.
    pub fn addresses(index: u32, [descriptors, driver, device]: [u64; 3]) -> Vec<u8> {
        let mut body = link::ring_state(index, 0).to_vec();
        body.extend([descriptors, device, driver, 0].map(u64::to_le_bytes).concat());
        body
    }

    /// Logs the writes to the used ring of ring `index` at guest address `at` while the ring runs.
    pub fn log_ring(&self, index: u32, at: u64) -> Strike {
        let mut body = Self::addresses(index, Self::places(index));
        body[4] = 1; // `VHOST_VRING_F_LOG`
        body.splice(32.., at.to_le_bytes());
        self.link.tell(request::SET_VRING_ADDR, &body, &[])
    }

    /// The user addresses of a ring's parts.
    pub fn places(index: u32) -> [u64; 3] {
        let at = USER + u64::from(index) * RING_LEN as u64;
        [at, at + super::ring::DRIVER as u64, at + super::ring::DEVICE as u64]
    }

    /// Sends the complete configuration of ring `index`, and enables it.
    pub fn serve(&self, index: u32) -> Strike {
        self.serve_at(index, Self::places(index), self.base())
    }

    fn base(&self) -> u32 {
        // Both wrap counters of a packed ring begin at 1 (virtio 1.2 §2.8.1).
        if self.plan.features & PACKED != 0 { 0x8000_8000 } else { 0 }
    }

    /// Configures and enables ring `index` with any addresses and any base.
    pub fn serve_at(&self, index: u32, places: [u64; 3], base: u32) -> Strike {
        let at = index as usize;
        let link = &self.link;
        link.tell_ring(request::SET_VRING_NUM, index, self.plan.size.into())?;
        link.tell_ring(request::SET_VRING_BASE, index, base)?;
        link.tell(request::SET_VRING_ADDR, &Self::addresses(index, places), &[])?;
        for (request, fds) in [
            (request::SET_VRING_ERR, &self.errs),
            (request::SET_VRING_CALL, &self.calls),
            (request::SET_VRING_KICK, &self.kicks),
        ] {
            link.tell_fd(request, index, fds.get(at).map(AsFd::as_fd))?;
        }
        link.tell_ring(request::SET_VRING_ENABLE, index, 1)
    }

    /// The ring `index`.
    pub fn ring(&self, index: u32) -> Ring<'_> {
        Ring { memory: &self.memory, at: index as usize * RING_LEN, size: self.plan.size }
    }

    /// The offset of buffer `slot` of ring `index` in memory.
    pub fn buffer(&self, index: u32, slot: u16) -> usize {
        let places = (self.memory.len() - BUFFERS) / STRIDE;
        let place = index as usize * usize::from(self.plan.size) + usize::from(slot);
        BUFFERS + place % places * STRIDE
    }

    /// The guest address of buffer `slot` of ring `index`.
    pub fn buffer_address(&self, index: u32, slot: u16) -> u64 {
        GUEST + self.buffer(index, slot) as u64
    }

    /// Posts all buffers of a receive ring. Fills a transmit ring's descriptors with small broadcasts.
    fn fill(&self, index: u32) {
        let (ring, receives) = (self.ring(index), index.is_multiple_of(2));
        for slot in 0..ring.size {
            let address = self.buffer_address(index, slot);
            if self.plan.features & PACKED == 0 {
                let (len, flags) = if receives { (STRIDE as u32, WRITE) } else { (72, 0) };
                ring.set(slot, address, len, flags, 0);
                ring.set_available(slot, slot);
            } else if receives {
                ring.set_packed(slot, address, STRIDE as u32, slot, WRITE | super::ring::AVAIL);
            }
        }
        if receives && self.plan.features & PACKED == 0 {
            ring.set_index(ring.size);
        }
    }

    /// The first `len` bytes (an even number) of frame `number` that receive ring `index` has got. The buffer must
    /// not be reposted yet, and buffers must be used in order.
    pub fn received(&self, index: u32, number: u16, len: usize) -> Vec<u8> {
        let at = self.buffer(index, number % self.plan.size) + HEADER_LEN;
        let pairs = (at..at + len).step_by(2);
        pairs.flat_map(|at| self.memory.u16_at(at).to_ne_bytes()).collect()
    }

    /// Reposts all used receive buffers.
    pub fn repost(&self, index: u32) {
        let ring = self.ring(index);
        ring.set_index(ring.used().wrapping_add(ring.size));
    }

    /// Puts a frame into buffer `slot` of transmit ring `index`, and sets the descriptor `slot` to it.
    pub fn put(&self, index: u32, slot: u16, header: Header, frame: &[u8]) {
        let at = self.buffer(index, slot);
        self.memory.set(at, &header.bytes());
        self.memory.set(at + HEADER_LEN, frame);
        let len = u32::try_from(HEADER_LEN + frame.len()).unwrap_or(u32::MAX);
        self.ring(index).set(slot, GUEST + at as u64, len, 0, 0);
    }

    /// Sends one frame.
    pub fn send(&self, index: u32, header: Header, frame: &[u8]) {
        let ring = self.ring(index);
        let slot = self.memory.u16_at(ring.index_at()) % ring.size;
        self.put(index, slot, header, frame);
        ring.offer(slot);
        self.kick(index);
    }

    /// Fills the transmit ring `index` with frames of `make`, which [`Self::pump`] sends.
    pub fn load(&self, index: u32, mut make: impl FnMut(u16) -> (Header, Vec<u8>)) {
        let ring = self.ring(index);
        for slot in 0..ring.size {
            let (header, frame) = make(slot);
            self.put(index, slot, header, &frame);
            ring.set_available(slot, slot);
        }
    }

    /// Offers all sent frames of the ring again, so that the ring stays full. Returns their number.
    pub fn pump(&self, index: u32) -> u16 {
        let ring = self.ring(index);
        let before = self.memory.u16_at(ring.index_at());
        let now = ring.used().wrapping_add(ring.size);
        ring.set_index(now);
        if !ring.wants_no_kick() {
            self.kick(index);
        }
        now.wrapping_sub(before)
    }

    /// Kicks ring `index`.
    pub fn kick(&self, index: u32) {
        if let Some(kick) = self.kicks.get(index as usize) {
            let _ = rustix::io::write(kick, &1_u64.to_ne_bytes());
        }
    }

    /// weir must stop this port now: it writes to a ring's error descriptor or disconnects.
    pub fn stopped(&self, why: &str) -> Strike {
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            for err in &self.errs {
                if readable(err.as_fd(), Duration::from_millis(5))? {
                    return Ok(());
                }
            }
        }
        harm(format!("weir serves on after {why}"))
    }

    /// weir must use all buffers that are available in transmit ring `index`.
    pub fn taken(&self, index: u32, what: &str) -> Strike {
        let (ring, end) = (self.ring(index), Instant::now() + Duration::from_secs(2));
        while ring.used() != self.memory.u16_at(ring.index_at()) {
            if Instant::now() > end {
                return harm(format!("weir leaves {what} in the ring"));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// The guest's own address in frames that it sends as an honest guest.
    pub fn mac(number: u8) -> Mac {
        [0x52, 0x54, 0, 0xee, 0, number]
    }
}
