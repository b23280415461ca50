//! weir's part of a packet's way, alone in a function for counting instructions: two guests' drivers, two ports,
//! and bursts of frames from the first to the second.
//!
//! ```sh
//! cargo build --release -p weir-port-vhost --example instructions
//! valgrind --tool=callgrind --toggle-collect='instructions::measured*' \
//!     target/release/examples/instructions split 64 32 1000
//! ```
//!
//! The count covers a worker's work on a burst: [`Port::take`] with everything below it, up to the receiver's used
//! index and the decision whether to call. It excludes drivers, sleep, wake-ups and kicks. The number of counted
//! frames is printed at the end.
//!
//! `instructions calls UPLINK ...` is another program: see `calls.rs`.
//!
//! No worker or driver runs beside it: the engine's table has idle ports in place of these, so that
//! the engine's worker ignores their kicks, and the rings are served from here.
#![forbid(unsafe_code)]

mod calls;

use std::convert::Infallible;
use std::error::Error;
use std::hint::black_box;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use weir_engine::burst::Burst;
use weir_engine::burst::Scratch;
use weir_engine::capture::Wanted;
use weir_engine::filter::{Action, PortRules, Rules};
use weir_engine::guest::{CallPolicy, GuestDevice, GuestPort, State};
use weir_engine::{
    Ask, Delivered, Engine, Forward, Forwarder, Ingress, Outgoing, Port, PortCounters, Ports, Side,
    Slot, Take, Taken, clock,
};
use weir_fabric::{FrameKey, PortConfig, PortId, Vid, VlanMode};
use weir_filter::Program;
use weir_policy::moderation::Kind;
use weir_policy::steering::Receiver;
use weir_port_vhost::{Endpoint, Manager, Records, VhostOptions, VhostPort};
use weir_vif::{Features, Options, QueuePair, Vif};
use weir_wire::{Mac, Offload, VnetHdr, vnet};

use translated::Driver;

const USAGE: &str = "usage: instructions split|split-filtered|split-gso|split-1000|split-never-captured|\
    split-once-captured|split-low|split-linux|split-gso-pages|split-translated|split-not-translated|packed|packed-low|\
    packed-in-order \
    FRAME_BYTES BURST BURSTS [places]";
/// Sizes of receive buffers that Linux offers in turn for frames of 1500 bytes: pages are cut into buffers, and the last
/// one gets what is left (bytes).
const LINUX_BUFFERS: [u32; 2] = [1536, 2560];
/// The size of Linux's receive buffers for large frames (bytes).
const PAGE: u32 = 4096;
/// Ports of `split-1000`.
const MANY: usize = 1000;
/// A filter of ten terms. A frame passes once all terms are judged.
const FILTER: &str = "ip and udp and src net 10.0.0.0/8 \
    and not (dst port 53 or 67 or 68 or 123 or 161 or 514 or 1900)";
/// Entries of each ring: QEMU's default.
const QUEUE_SIZE: u16 = 256;
/// Bursts before the measured ones: vectors have their size, addresses are learned, and each ring place was used
/// several times.
const WARM_UP: usize = 64;
/// The time that a guest's rings get to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Local experimental ethertype (IEEE 802).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const ETHERTYPE_OFFSET: usize = 12;
/// The bytes from that offset on are replaced by IPv4 and UDP, 10.0.0.1:4000 to 10.0.0.2:4001.
const UDP: [u8; 30] = [
    8, 0, 0x45, 0, 0, 50, 0, 0, 0x40, 0, 64, 17, 0x26, 0xb9, 10, 0, 0, 1, 10, 0, 0, 2, 0x0f, 0xa0,
    0x0f, 0xa1, 0, 30, 0, 0,
];
/// In a GSO frame, the same bytes are replaced by IPv4 and TCP. A receiver with TSO ignores the
/// lengths and sums.
const TCP: [u8; 42] = [
    8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x0f, 0xa0, 0x0f,
    0xa1, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0,
];
const GSO: VnetHdr = VnetHdr {
    flags: vnet::F_NEEDS_CSUM,
    gso_type: vnet::GSO_TCPV4,
    hdr_len: 54,
    gso_size: 1448,
    csum_start: 34,
    csum_offset: 16,
    num_buffers: 0,
};
const MACS: [Mac; 2] = [Mac([0x52, 0x54, 0, 0, 0, 1]), Mac([0x52, 0x54, 0, 0, 0, 2])];
/// The guest that sends, and the one that receives.
const SENDER: usize = 0;
const RECEIVER: usize = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = args.as_slice()
        && first == "calls"
    {
        return calls::run(rest);
    }
    let [format, frame_bytes, burst, bursts, places @ ..] = args.as_slice() else {
        return Err(USAGE.into());
    };
    let base = Features::ALL - Features::RING_PACKED - Features::IN_ORDER;
    let features = match format.as_str() {
        "split"
        | "split-1000"
        | "split-filtered"
        | "split-gso"
        | "split-gso-pages"
        | "split-linux"
        | "split-low"
        | "split-translated"
        | "split-not-translated"
        | "split-never-captured"
        | "split-once-captured" => base,
        "packed" | "packed-low" => base | Features::RING_PACKED,
        "packed-in-order" => base | Features::RING_PACKED | Features::IN_ORDER,
        _ => return Err(USAGE.into()),
    };
    let [frame_bytes, burst, bursts] = [frame_bytes, burst, bursts].map(|arg| arg.parse::<usize>());
    let (frame_bytes, burst, bursts) = (frame_bytes?, burst?, bursts?);

    let mut rig = Rig::new(features)?;
    rig.options.has_low_memory = format.ends_with("-low");
    rig.is_translated = match format.as_str() {
        "split-translated" => Some(true),
        "split-not-translated" => Some(false),
        _ => None,
    };
    match format.as_str() {
        "split-gso-pages" => rig.options.rx_buffer_bytes = PAGE,
        "split-linux" => {
            let [one, other] = LINUX_BUFFERS;
            rig.options.rx_buffer_bytes = one;
            rig.options.other_rx_buffer_bytes = Some(other);
        }
        _ => {}
    }
    let vid = Vid::DEFAULT;
    let [mut sender, mut receiver] = [rig.guest(SENDER, vid)?, rig.guest(RECEIVER, vid)?];
    rig.learn(&mut sender, SENDER)?;
    rig.learn(&mut receiver, RECEIVER)?;
    if format == "split-1000" {
        rig.crowd(MANY - MACS.len())?;
    }

    let (mut frame, offload) = match format.as_str() {
        "split-gso" | "split-gso-pages" => gso_frame(frame_bytes)?,
        _ => (frame(MACS[SENDER], MACS[RECEIVER], frame_bytes), Offload::NONE),
    };
    if format == "split-filtered" {
        frame.get_mut(ETHERTYPE_OFFSET..).ok_or(USAGE)?[..UDP.len()].copy_from_slice(&UDP);
        let program = Arc::new(Program::compile(FILTER)?);
        let rules = Rules::new([
            (program, Action::Accept),
            (Arc::new(Program::compile("")?), Action::Drop),
        ])?;
        rig.filter(SENDER, rules);
    }
    let mut capture = None;
    if format.ends_with("-captured") {
        rig.serve_from_the_engines_table()?;
    }
    if format == "split-once-captured" {
        capture = Some(rig.engine.capture(&rig.ids, &Wanted::ALL)?);
        rig.look_up();
    }
    let mut arrived = 0;
    for number in 0..WARM_UP + bursts {
        for _ in 0..burst {
            sender.pair.send(&frame, &offload)?;
        }
        sender.pair.flush();
        if number == WARM_UP && places == ["places"] {
            print!("{}", std::fs::read_to_string("/proc/self/maps")?);
            println!(
                "turns {:#x} {:#x}",
                measured as fn(&mut Rig) -> Taken as usize, drivers as fn() as usize
            );
        }
        let taken = if number < WARM_UP { rig.serve(SENDER) } else { measured(&mut rig) };
        drivers();
        if taken.frames != burst {
            return Err(format!("{} of {burst} frames were taken at once", taken.frames).into());
        }
        while receiver.pair.recv().is_some() {
            arrived += usize::from(number >= WARM_UP);
        }
        if number == WARM_UP - 1
            && let Some(mut capture) = capture.take()
        {
            let Ok(copied) = capture.read(|_, _| Ok::<_, Infallible>(()));
            if copied != 2 * burst * WARM_UP {
                return Err(format!("{copied} frames were captured").into());
            }
            drop(capture);
            rig.look_up();
        }
    }
    if arrived != burst * bursts {
        return Err(format!("{arrived} frames of {bursts} times {burst} arrived").into());
    }
    println!("{arrived}");
    Ok(())
}

/// Serves one burst. The instructions of this function and of those that it calls are counted.
#[inline(never)]
fn measured(rig: &mut Rig) -> Taken {
    black_box(rig).serve(SENDER)
}

/// Marks where the drivers' turn begins.
#[inline(never)]
fn drivers() {
    black_box(());
}

/// A switch of two ports that moves frames only when told to.
struct Rig {
    ports: Ports,
    scratch: Scratch,
    forwarder: Forwarder,
    manager: Manager,
    engine: Arc<Engine>,
    ids: Vec<PortId>,
    vhost: Vec<Arc<VhostPort>>,
    /// Options of each guest's interface.
    options: Options,
    /// Whether guests of another driver are behind a virtual IOMMU, if they have it.
    is_translated: Option<bool>,
}

/// A guest's port in the engine's table, which only the thread that made it serves.
struct Own(Arc<VhostPort>, ThreadId);

impl Own {
    fn is_served(&self) -> bool {
        thread::current().id() == self.1
    }
}

impl Receiver for Own {}

impl Port for Own {
    fn take(&self, queue: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken {
        match self.is_served() {
            true => self.0.take(queue, ask, scratch, forward),
            false => Taken::default(),
        }
    }

    fn deliver(&self, queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        self.0.deliver(queue, burst, frames)
    }

    fn arm_tx(&self, _queue: usize) -> bool {
        false
    }

    fn rx_queues(&self) -> usize {
        self.0.rx_queues()
    }

    fn fail(&self, reason: &str) {
        self.0.fail(reason);
    }
}

/// Takes the place of a port in the table of the engine's own worker, and does nothing.
struct Stand;

impl Receiver for Stand {}

impl Port for Stand {
    fn take(&self, _: usize, _: Ask, _: &mut Scratch, _: Forward<'_>) -> Taken {
        Taken::default()
    }

    fn deliver(&self, _: usize, _: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        Delivered { frames: frames.len(), ..Delivered::default() }
    }

    fn arm_tx(&self, _queue: usize) -> bool {
        false
    }

    fn rx_queues(&self) -> usize {
        0
    }

    fn fail(&self, _reason: &str) {}
}

struct Guest {
    pair: Pair,
    /// The session: the rings stop when it ends.
    _vif: Option<Vif>,
}

/// A guest's driver.
enum Pair {
    Vif(Box<QueuePair>),
    Own(Box<Driver>),
}

impl Pair {
    fn send(&mut self, frame: &[u8], offload: &Offload) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Vif(pair) => Ok(pair.send(frame, offload)?),
            Self::Own(driver) => driver.send(frame),
        }
    }

    fn flush(&mut self) {
        match self {
            Self::Vif(pair) => pair.flush(),
            Self::Own(driver) => driver.flush(),
        }
    }

    /// Takes a received frame, and returns its length.
    fn recv(&mut self) -> Option<u32> {
        match self {
            Self::Vif(pair) => pair.recv(|frame| frame.len as u32),
            Self::Own(driver) => driver.recv(),
        }
    }
}

impl Rig {
    fn new(features: Features) -> Result<Self, Box<dyn Error>> {
        let engine = Engine::start(1)?;
        let manager = Manager::start(Arc::clone(&engine))?;
        Ok(Self {
            ports: Ports::new(),
            scratch: Scratch::default(),
            forwarder: Forwarder::default(),
            manager,
            engine,
            ids: Vec::new(),
            vhost: Vec::new(),
            is_translated: None,
            options: Options {
                queue_size: QUEUE_SIZE,
                features,
                required: features & (Features::VERSION_1 | Features::RING_PACKED),
                // weir limits a session to a twentieth of a processor, and under valgrind everything takes a hundred
                // times as long.
                timeout: START_TIMEOUT,
                ..Options::new(MACS[SENDER])
            },
        })
    }

    /// Adds a port of a VLAN with the next number, connects a guest with address `index` to it, and starts its rings.
    fn guest(&mut self, index: usize, vid: Vid) -> Result<Guest, Box<dyn Error>> {
        let options = VhostOptions {
            name: "guest".into(),
            queue_pairs: 1,
            calls: CallPolicy::within(Kind::Immediate, weir_limits::LATENCY_BUDGET_NS_DEFAULT),
            device: GuestDevice {
                access_platform: self.is_translated == Some(true),
                ..GuestDevice::default()
            },
        };
        let config = PortConfig { vlan: VlanMode::Access(vid), ..PortConfig::vif() };
        let (id, _) = self.engine.add_port(config, |_, _| Arc::new(Stand))?;
        // Rings are recorded, as in the program.
        let dir = tempfile::tempdir()?;
        let records = Records::open(&dir.path().join("rings"))?;
        let counters = Arc::new(PortCounters::default());
        let port = Arc::new(VhostPort::new(id, counters, &options).with_records(records));
        self.vhost.push(Arc::clone(&port));
        let (ours, theirs) = UnixStream::pair()?;
        self.manager.add(Arc::clone(&port), Endpoint::Connected(ours))?;
        let (pair, vif) = match self.is_translated {
            Some(has_iommu) => (Pair::Own(Box::new(Driver::over(theirs, has_iommu)?)), None),
            None => {
                let options = Options { mac: MACS[index], ..self.options.clone() };
                let mut vif = Vif::over(theirs, &options)?;
                (Pair::Vif(Box::new(vif.queue_pairs().remove(0))), Some(vif))
            }
        };
        port.kicked(0, Side::Rx);
        port.kicked(0, Side::Tx);
        let start = Instant::now();
        while port.info().state != State::Running {
            if start.elapsed() > START_TIMEOUT {
                return Err(format!("the rings of guest {index} do not start").into());
            }
            thread::yield_now();
        }
        let counters = Arc::new(PortCounters::default());
        self.ports.push(Some(Slot::new(port, counters)));
        Ok(Guest { pair, _vif: vif })
    }

    /// Lets the switch learn where a guest is.
    fn learn(&mut self, guest: &mut Guest, index: usize) -> Result<(), Box<dyn Error>> {
        guest.pair.send(&frame(MACS[index], Mac::BROADCAST, 64), &Offload::NONE)?;
        guest.pair.flush();
        self.serve(index);
        Ok(())
    }

    /// Adds other ports, whose guests are known and silent.
    fn crowd(&mut self, others: usize) -> Result<(), Box<dyn Error>> {
        for _ in 0..others {
            let (id, port) = self.engine.add_port(PortConfig::vif(), |_, _| Arc::new(Stand))?;
            self.engine.fabric().set_active(id, true)?;
            let [high, low] = id.get().to_be_bytes();
            let src = Mac([0x52, 0x54, 0, 1, high, low]);
            let key = FrameKey { src, dst: MACS[SENDER], tag: None };
            let known = self.engine.fabric().view().forward(id, &key, clock::secs(clock::now_ns()));
            known.map_err(|reason| format!("a silent guest is refused: {reason:?}"))?;
            self.ports.push(Some(Slot::new(port, Arc::new(PortCounters::default()))));
        }
        Ok(())
    }

    /// Gives a port filter rules for the frames that it sends.
    fn filter(&mut self, index: usize, rules: Rules) {
        if let Some(slot) = &mut self.ports[index] {
            slot.set_rules(PortRules { tx: Some(Arc::new(rules)), rx: None });
        }
    }

    /// Puts the guests' ports into the engine's table, where they can be captured, and serves them from there.
    fn serve_from_the_engines_table(&mut self) -> Result<(), Box<dyn Error>> {
        self.ids.clear();
        for port in &self.vhost {
            let own = Own(Arc::clone(port), thread::current().id());
            let (id, _) = self.engine.add_port(PortConfig::vif(), |_, _| Arc::new(own))?;
            self.ids.push(id);
        }
        self.look_up();
        Ok(())
    }

    /// Takes the guests' ports from the engine's table as they are there now.
    fn look_up(&mut self) {
        let table = self.engine.ports();
        self.ports = self.ids.iter().map(|id| table.get(id.index()).cloned().flatten()).collect();
    }

    /// Does a worker's part for one burst of guest `index`.
    fn serve(&mut self, index: usize) -> Taken {
        let Self { ports, scratch, forwarder, engine, .. } = self;
        let (Some(Some(slot)), Some(port)) =
            (ports.get(index), u16::try_from(index).ok().and_then(PortId::new))
        else {
            return Taken::default();
        };
        let now_ns = clock::now_ns();
        let view = engine.fabric().view();
        let ingress = Ingress { view: &view, ports, port, counters: &slot.counters, now_ns };
        slot.port.take(0, Take::New.at(now_ns), scratch, &mut |burst| {
            forwarder.forward(ingress, burst);
        })
    }
}

/// A TCP packet that is to be cut into segments, and the offloads that this needs.
fn gso_frame(len: usize) -> Result<(Vec<u8>, Offload), Box<dyn Error>> {
    let mut frame = frame(MACS[SENDER], MACS[RECEIVER], len);
    frame.get_mut(ETHERTYPE_OFFSET..).ok_or(USAGE)?[..TCP.len()].copy_from_slice(&TCP);
    let offload = Offload::from_vnet(&GSO, &frame, frame.len() as u32)?;
    Ok((frame, offload))
}

fn frame(from: Mac, to: Mac, len: usize) -> Vec<u8> {
    let mut frame = [&to.0[..], &from.0, &ETHERTYPE].concat();
    frame.resize(len.max(frame.len()), 0);
    frame
}

/// A guest whose buffers have addresses as Linux gives them behind a virtual IOMMU: each is in I/O virtual pages of
/// its own, and each has a translation of its own. All translations are told before the first frame. The same driver without
/// a virtual IOMMU is there for comparison.
mod translated {
    use std::error::Error;
    use std::fs::File;
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use weir_guestmem::{GuestMemory, RegionSpec};
    use weir_ring::{Addresses, Buffer, DriverRing, RingConfig};
    use weir_vhost_user::{FrontEnd, IotlbMsg, MemoryRegion, VringAddr};
    use weir_wire::VnetHdr;

    use super::{QUEUE_SIZE, START_TIMEOUT};

    const PAGE: u64 = 4096;
    const MEMORY: u64 = 4 << 20;
    /// User addresses are guest-physical ones plus this.
    const USER: u64 = 0x7f00_0000_0000;
    /// The first I/O virtual address of a buffer.
    const VIRTUAL: u64 = 0x40_0000_0000;
    /// The first receive buffer and the first one to send, and bytes from one to the next.
    const BUFFERS: [u64; 2] = [1 << 20, 2 << 20];
    const STRIDE: u64 = 33 * 64;
    const BUFFER_BYTES: u32 = 2048;

    const EVENT_IDX: u64 = 1 << 29;
    const INDIRECT: u64 = 1 << 28;
    const ACCESS_PLATFORM: u64 = 1 << 33;
    /// Features that this driver does not know: logging, packed rings, and the order of buffers.
    const UNKNOWN: u64 = 1 << 26 | 1 << 34 | 1 << 35;

    pub(crate) struct Driver {
        /// The session: the rings stop when it ends.
        front: FrontEnd,
        _events: Vec<OwnedFd>,
        _channel: UnixStream,
        memory: Arc<GuestMemory>,
        has_iommu: bool,
        /// To receive, and to send.
        rings: [DriverRing; 2],
        /// The buffer of each chain, and free buffers to send.
        buffer_of: [Vec<u64>; 2],
        free: Vec<u64>,
    }

    fn ring_at(index: u64) -> Addresses {
        let base = USER + index * 4 * PAGE;
        Addresses { descriptor: base, driver: base + PAGE, device: base + 2 * PAGE }
    }

    impl Driver {
        pub(crate) fn over(stream: UnixStream, has_iommu: bool) -> Result<Self, Box<dyn Error>> {
            let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC)?);
            ftruncate(&file, MEMORY)?;
            let region =
                MemoryRegion { guest_address: 0, size: MEMORY, user_address: USER, mmap_offset: 0 };
            let spec =
                RegionSpec { guest_address: 0, size: MEMORY, user_address: USER, mmap_offset: 0 };
            let memory = Arc::new(GuestMemory::map(&[(spec, file.try_clone()?)])?);

            let mut front = FrontEnd::new(stream);
            front.set_timeout(START_TIMEOUT);
            let unknown = if has_iommu { UNKNOWN } else { UNKNOWN | ACCESS_PLATFORM };
            let features = front.get_features()? & !unknown;
            let protocol = front.get_protocol_features()?;
            front.set_protocol_features(protocol)?;
            front.set_owner()?;
            front.set_features(features)?;
            let (channel, theirs) = UnixStream::pair()?;
            if has_iommu {
                front.set_backend_req_fd(theirs.as_fd())?;
            }
            front.set_mem_table(&[(region, file.as_fd())])?;

            let config = RingConfig {
                size: QUEUE_SIZE,
                event_idx: features & EVENT_IDX != 0,
                indirect: features & INDIRECT != 0,
                ..RingConfig::default()
            };
            let rings = [0, 1].map(|ring| DriverRing::new(&memory, config, &ring_at(ring)));
            let [rx, tx] = rings;
            let buffers =
                |first: u64| (0..u64::from(QUEUE_SIZE)).map(move |nth| first + nth * STRIDE);
            let buffer_of = [(); 2].map(|()| vec![0; QUEUE_SIZE.into()]);
            let mut driver = Self {
                front,
                _events: Vec::new(),
                _channel: channel,
                memory,
                has_iommu,
                rings: [rx?, tx?],
                buffer_of,
                free: buffers(BUFFERS[1]).collect(),
            };
            if has_iommu {
                driver.tell(USER, 16 * PAGE, USER)?;
                for buffer in BUFFERS.into_iter().flat_map(buffers) {
                    let first = driver.told(buffer) & !(PAGE - 1);
                    let end = (driver.told(buffer) + STRIDE).next_multiple_of(PAGE);
                    driver.tell(first, end - first, USER + (buffer & !(PAGE - 1)))?;
                }
            }
            for index in 0..2 {
                driver.set_vring(index)?;
            }
            buffers(BUFFERS[0]).try_for_each(|buffer| driver.post(buffer))?;
            driver.rings[0].publish();
            Ok(driver)
        }

        fn tell(&mut self, iova: u64, size: u64, user: u64) -> Result<(), Box<dyn Error>> {
            let message = IotlbMsg { iova, size, user, permission: 3, kind: IotlbMsg::UPDATE };
            Ok(self.front.iotlb_msg(&message)?)
        }

        fn set_vring(&mut self, index: u32) -> Result<(), Box<dyn Error>> {
            let Addresses { descriptor, driver, device } = ring_at(index.into());
            let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
            let (kick, call) = (event()?, event()?);
            let front = &mut self.front;
            front.set_vring_num(index, QUEUE_SIZE.into())?;
            front.set_vring_base(index, 0)?;
            let addresses =
                VringAddr { index, flags: 0, descriptor, used: device, available: driver, log: 0 };
            front.set_vring_addr(addresses)?;
            front.set_vring_call(index, Some(call.as_fd()))?;
            front.set_vring_kick(index, Some(kick.as_fd()))?;
            front.set_vring_enable(index, true)?;
            self._events.extend([kick, call]);
            Ok(())
        }

        /// The address of a buffer as the device is told it: page after page has its own place.
        fn told(&self, buffer: u64) -> u64 {
            match self.has_iommu {
                true => VIRTUAL + buffer + (buffer - BUFFERS[0]) / STRIDE * 2 * PAGE,
                false => buffer,
            }
        }

        fn offer(&mut self, ring: usize, buffer: u64, len: u32) -> Result<(), Box<dyn Error>> {
            let address = self.told(buffer);
            let chain = Buffer { address, len, writable: ring == 0 };
            let head = self.rings[ring].offer(&[chain]).ok_or("the ring is full")?;
            self.buffer_of[ring][usize::from(head)] = buffer;
            Ok(())
        }

        fn post(&mut self, buffer: u64) -> Result<(), Box<dyn Error>> {
            self.offer(0, buffer, BUFFER_BYTES)
        }

        pub(crate) fn send(&mut self, frame: &[u8]) -> Result<(), Box<dyn Error>> {
            while let Some(used) = self.rings[1].take() {
                self.free.push(self.buffer_of[1][usize::from(used.head)]);
            }
            let buffer = self.free.pop().ok_or("all buffers are on their way")?;
            let bytes = [&VnetHdr::default().to_bytes()[..], frame].concat();
            let len = bytes.len() as u32;
            self.memory.slice(buffer, len).ok_or("no such buffer")?.write(&bytes);
            self.offer(1, buffer, len)
        }

        pub(crate) fn flush(&mut self) {
            self.rings[1].publish();
        }

        /// Takes a received frame and offers its buffer again.
        pub(crate) fn recv(&mut self) -> Option<u32> {
            let used = self.rings[0].take()?;
            let buffer = self.buffer_of[0][usize::from(used.head)];
            self.post(buffer).ok()?;
            self.rings[0].publish();
            Some(used.written)
        }
    }
}
