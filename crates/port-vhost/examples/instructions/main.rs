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
//! No worker or driver runs beside it: idle ports stand in the engine's table in place of these, so that its worker
//! ignores their kicks, and rings are served from here.
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

const USAGE: &str = "usage: instructions split|split-filtered|split-gso|split-1000|split-never-captured|\
    split-once-captured|split-low|split-linux|split-gso-pages|packed|packed-low|packed-in-order \
    FRAME_BYTES BURST BURSTS [places]";
/// Sizes of receive buffers that Linux offers in turn for frames of 1500 bytes: pages are cut into buffers, and the last
/// one gets what is left (bytes).
const LINUX_BUFFERS: [u32; 2] = [1536, 2560];
/// The size of its receive buffers for large frames (bytes).
const PAGE: u32 = 4096;
/// Ports of `split-1000`.
const MANY: usize = 1000;
/// Ten terms; a frame is passed when all are judged.
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
/// The bytes from there on are replaced by IPv4 and UDP, 10.0.0.1:4000 to 10.0.0.2:4001.
const UDP: [u8; 30] = [
    8, 0, 0x45, 0, 0, 50, 0, 0, 0x40, 0, 64, 17, 0x26, 0xb9, 10, 0, 0, 1, 10, 0, 0, 2, 0x0f, 0xa0,
    0x0f, 0xa1, 0, 30, 0, 0,
];
/// In a GSO frame they are replaced by IPv4 and TCP; a receiver with TSO ignores the lengths and sums.
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
        while receiver.pair.recv(|frame| frame.len).is_some() {
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

/// Stands for a port in the table of the engine's own worker, and does nothing.
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
    pair: QueuePair,
    /// The session: the rings stop when it ends.
    _vif: Vif,
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
            device: GuestDevice::default(),
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
        let options = Options { mac: MACS[index], ..self.options.clone() };
        let mut vif = Vif::over(theirs, &options)?;
        let pair = vif.queue_pairs().remove(0);
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

    /// The switch learns where a guest is.
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

    /// Takes the guests' ports from the engine's table as they stand there now.
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
