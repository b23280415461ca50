//! A guest at a socket of weir that answers ARP and ping, with the front end of the `vhost` crate, as in rust-vmm's
//! VM monitors: every message is the crate's, the rings are driven here. It stays until it is interrupted, and
//! reconnects whenever weir comes back:
//!
//! ```sh
//! cargo run --release -p weir-port-vhost --example vhost_crate -- /run/weir/web0.sock 52:54:00:77:00:03 10.77.0.3 [packed]
//! ```

use std::error::Error;
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use weir_guestmem::{GuestMemory, RegionSpec};
use weir_ring::{Addresses, Buffer, DriverRing, RingConfig, Used};
use weir_testing::echo::answer;
use weir_wire::{Mac, VnetHdr};

/// The time between two polls of the rings, and between two attempts to reach weir.
const NAP: Duration = Duration::from_millis(1);
const INTERVAL: Duration = Duration::from_millis(200);

/// Entries of each ring.
const SIZE: u16 = 256;
/// Guest address = offset in the file; user address = that plus this.
const USER: u64 = 0x7f00_0000_0000;
const MEMORY: u64 = 4 << 20;
/// The size of each buffer, and the first buffers of the receive and the transmit ring.
const BUFFER: u64 = 2048;
const BUFFERS: [u64; 2] = [1 << 20, 2 << 20];

/// `VERSION_1`, `MRG_RXBUF`, `EVENT_IDX` and vhost-user's own bit; packed rings come on top.
const FEATURES: u64 = 1 << 32 | 1 << 15 | 1 << 29 | 1 << 30;
const RING_PACKED: u64 = 1 << 34;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [socket, mac, ip, rings @ ..] = args.as_slice() else {
        return Err("usage: vhost_crate SOCKET MAC IP [packed]".into());
    };
    let (mac, ip): (Mac, Ipv4Addr) = (mac.parse()?, ip.parse()?);
    let packed = rings.first().is_some_and(|rings| rings == "packed");
    loop {
        match Guest::join(socket, packed) {
            Ok(mut guest) => {
                println!("answering at {ip}");
                guest.serve(mac, ip);
            }
            Err(error) => println!("{error}"),
        }
        thread::sleep(INTERVAL);
    }
}

/// A session and its two rings.
struct Guest {
    frontend: Frontend,
    memory: Arc<GuestMemory>,
    /// The receive ring, then the transmit ring.
    rings: [DriverRing; 2],
    kicks: [EventFd; 2],
    /// The place of each chain's buffer.
    at: [Vec<u64>; 2],
    free: Vec<u64>,
}

fn ring_at(index: u64) -> Addresses {
    let base = USER + index * 0x8000;
    Addresses { descriptor: base, driver: base + 0x2000, device: base + 0x4000 }
}

impl Guest {
    fn join(socket: &str, packed: bool) -> Result<Self> {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC)?);
        ftruncate(&file, MEMORY)?;
        let spec =
            RegionSpec { guest_address: 0, size: MEMORY, user_address: USER, mmap_offset: 0 };
        let memory = Arc::new(GuestMemory::map(&[(spec, file.try_clone()?)])?);
        let config = RingConfig { size: SIZE, event_idx: true, packed, ..RingConfig::default() };
        let ring = |index| DriverRing::new(&memory, config, &ring_at(index));
        let rings = [ring(0)?, ring(1)?];

        let mut frontend = Frontend::connect(socket, 2)?;
        frontend.set_owner()?;
        let features = FEATURES | if packed { RING_PACKED } else { 0 };
        let offered = frontend.get_features()?;
        if offered & features != features {
            return Err(format!("features {offered:#x} are offered").into());
        }
        frontend.set_features(features)?;
        let wanted = VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::MQ;
        let protocol = frontend.get_protocol_features()? & wanted;
        frontend.set_protocol_features(protocol)?;
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        frontend.set_mem_table(&[VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        }])?;
        let kicks = [EventFd::new(EFD_NONBLOCK)?, EventFd::new(EFD_NONBLOCK)?];
        let call = EventFd::new(EFD_NONBLOCK)?;
        for (index, kick) in kicks.iter().enumerate() {
            let at = ring_at(index as u64);
            let (size, base) = (SIZE, config.fresh_base());
            frontend.set_vring_num(index, size)?;
            let addresses = VringConfigData {
                queue_max_size: size,
                queue_size: size,
                flags: 0,
                desc_table_addr: at.descriptor,
                used_ring_addr: at.device,
                avail_ring_addr: at.driver,
                log_addr: None,
            };
            frontend.set_vring_addr(index, &addresses)?;
            // The crate has 16 bits for the base; a packed ring's lower half suffices.
            frontend.set_vring_base(index, base as u16)?;
            frontend.set_vring_call(index, &call)?;
            frontend.set_vring_kick(index, kick)?;
            frontend.set_vring_enable(index, true)?;
        }
        let slots = |first: u64| (0..u64::from(SIZE)).map(move |slot| first + slot * BUFFER);
        let at = [vec![0; SIZE.into()], vec![0; SIZE.into()]];
        let free = slots(BUFFERS[1]).collect();
        let mut guest = Self { frontend, memory, rings, kicks, at, free };
        for address in slots(BUFFERS[0]) {
            guest.offer(0, address, BUFFER as u32);
        }
        guest.publish(0);
        Ok(guest)
    }

    fn offer(&mut self, ring: usize, address: u64, len: u32) {
        let buffer = Buffer { address, len, writable: ring == 0 };
        if let Some(head) = self.rings[ring].offer(&[buffer]) {
            self.at[ring][usize::from(head)] = address;
        }
    }

    fn publish(&mut self, ring: usize) {
        if self.rings[ring].publish() {
            let _ = self.kicks[ring].write(1);
        }
    }

    /// Serves the rings until the session ends.
    fn serve(&mut self, mac: Mac, ip: Ipv4Addr) {
        let mut asked = Instant::now();
        loop {
            while let Some(mut frame) = self.receive() {
                if answer(&mut frame, mac, ip).is_some() {
                    self.send(&frame);
                }
            }
            self.publish(0);
            self.publish(1);
            if asked.elapsed() > INTERVAL {
                asked = Instant::now();
                if self.frontend.get_features().is_err() {
                    return;
                }
            }
            thread::sleep(NAP);
        }
    }

    /// Takes the next frame. A frame over several buffers is longer than any that is answered.
    fn receive(&mut self) -> Option<Vec<u8>> {
        let Used { head, written } = self.rings[0].take()?;
        let address = self.at[0][usize::from(head)];
        let mut bytes = vec![0; written as usize];
        self.memory.slice(address, written)?.read(&mut bytes);
        self.offer(0, address, BUFFER as u32);
        Some(bytes.split_off(VnetHdr::LEN.min(bytes.len())))
    }

    /// Sends a frame. A peer that sends faster than it is answered gets no answer.
    fn send(&mut self, frame: &[u8]) {
        while let Some(Used { head, .. }) = self.rings[1].take() {
            self.free.push(self.at[1][usize::from(head)]);
        }
        let len = (VnetHdr::LEN + frame.len()) as u32;
        let Some(address) = self.free.pop().filter(|_| u64::from(len) <= BUFFER) else { return };
        if let Some(at) = self.memory.slice(address, len) {
            at.write(&VnetHdr::default().to_bytes());
            at.skip(VnetHdr::LEN).write(frame);
        }
        self.offer(1, address, len);
    }
}
