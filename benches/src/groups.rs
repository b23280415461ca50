//! Guests in security groups, against OVS-DPDK's userspace connection tracking: established flows and new connections.
//!
//! testpmd neither answers nor opens connections, so the client is two `vif` guests in one polling thread, the same
//! for both switches. It never has more frames on the way than fit the rings, so no switch has to drop any: a frame
//! that does not arrive fails the row.

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use weir_bed::{
    address,
    error::{Error, Result, check},
    report::{Figure, Goal, Report, Samples},
    switch::Switch,
    weir::{self, Setup, Weir},
};
use weir_vif::{Options, QueuePair, Vif};
use weir_wire::{
    Mac, Offload,
    checksum::{Sum, ipv4_header_checksum, pseudo_header_v4},
    layers::protocol,
};

use super::{Bench, CLIENT_CPU, Contender, SWITCH_CPU, pin};

/// Rules of the group that both guests are in. Each guest accepts the connections that the other
/// opens at [`SERVER_PORT`].
pub(super) const RULES: &str = "[{ direction = \"in\", protocol = \"udp\", ports = \"7000\" }, \
                                { direction = \"in\", protocol = \"tcp\", ports = \"7000\" }]";

/// The same as flows of Open vSwitch, as in the conntrack tutorial of its documentation.
pub(super) const FLOWS: [&str; 6] = [
    "table=0,priority=0,actions=drop",
    "table=0,priority=10,arp,actions=NORMAL",
    "table=0,priority=50,ct_state=-trk,ip,actions=ct(table=0)",
    "table=0,priority=50,ct_state=+trk+new,tcp,tp_dst=7000,actions=ct(commit),NORMAL",
    "table=0,priority=50,ct_state=+trk+new,udp,tp_dst=7000,actions=ct(commit),NORMAL",
    "table=0,priority=50,ct_state=+trk+est,ip,actions=NORMAL",
];

const SERVER_PORT: u16 = 7000;
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);

/// Ports of one address of the client. Further flows have the next address.
const PORTS: u32 = 60_000;
const FIRST_PORT: u16 = 2000;

/// Frames that a guest takes from its ring and sends at a time.
const BURST: u32 = 32;
/// Frames on the way in each direction.
const IN_FLIGHT: u32 = 4 * BURST;
/// Connections that are being opened or closed at a time.
const OPENING: u32 = 2 * BURST;

/// Time for adaptive switches to notice the load, and for peers to fill their caches.
const WARM_UP: Duration = Duration::from_secs(1);
/// Duration of the count.
const TIME: Duration = Duration::from_millis(2500);
/// Time after which a frame that has not arrived is lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connections a second that a tenant wants beside another tenant's flood, far below its share of a processor.
const WANTED: f64 = 4000.0;

/// Numbers of flows whose costs are measured, with the smallest share of the rate without groups.
const COSTS: [(u32, &str, f64); 3] =
    [(1, "group_cost_1", 0.95), (1000, "group_cost_1000", 0.85), (100_000, "group_cost_100k", 0.6)];

/// TCP's flags (RFC 9293 §3.1).
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Offset of the IPv4 header, and of the one behind it.
const IP: usize = 14;
const L4: usize = IP + 20;
/// Length of every frame: Ethernet's shortest, without its checksum.
const FRAME: usize = 60;
/// Offsets of the TCP header's flags and checksum.
const FLAGS: usize = L4 + 13;
const TCP_CHECKSUM: usize = L4 + 16;

#[derive(Clone, Copy, Debug)]
enum Load {
    /// Frames of this many established flows, in turn.
    Flows(u32),
    /// TCP connections that are opened and closed at once.
    Connections,
}

/// Results for a switch.
struct Rate {
    /// Frames, or connections, per second.
    per_second: f64,
    /// The rate for each second that the switch spends on packets, if it counts them.
    per_busy_second: Option<f64>,
    /// The rate if the switch took no time: that of the client's core without its empty polls.
    limit: f64,
}

/// 1,000 established flows of 64 B.
pub(super) fn established(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let what = "64 B over 1,000 established flows, 128 in flight each way; weir's groups against OVS-DPDK's conntrack";
    compare(bench, report, "group_pps64", "packets/s", what, Load::Flows(1000))
}

/// New TCP connections: handshake and close.
pub(super) fn set_up(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let what = "new TCP connections, handshake and close, 64 at a time; weir's groups against OVS-DPDK's conntrack";
    compare(bench, report, "group_setup", "connections/s", what, Load::Connections)
}

/// The connections that a tenant sets up during another tenant's flood, relative to those that it
/// sets up without the flood. The other tenant's guest opens connections as fast as it can and
/// confirms none.
pub(super) fn set_up_beside_a_flood(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    let rounds = bench.rounds(|round| {
        let mut found = Vec::new();
        for is_flooded in [false, true] {
            bench.note_other_load()?;
            found.push(beside(bench, is_flooded)?);
        }
        let [(alone, _), (beside, flood)] = found[..] else { return Ok(None) };
        let rounds = bench.rounds;
        println!("round {round}/{rounds}: {beside:.0} connections/s beside {flood:.0} SYN/s, {alone:.0} alone");
        Ok(Some((alone, beside, flood)))
    })?;
    let each =
        |of: fn(&(f64, f64, f64)) -> f64| rounds.iter().flatten().map(of).collect::<Samples>();
    let what = "TCP connections that a tenant sets up, of 4,000/s that it wants: beside another tenant's SYN flood against alone";
    let ratio =
        Figure::ratio("group_setup_beside_flood", what, each(|it| it.1).ratio_to(&each(|it| it.0)));
    report.add(ratio.goal(Some(Goal::AtLeast(0.95))));
    let what = "the flood that arrives";
    report.add(Figure::new("group_setup_beside_flood_syns", "SYN/s", what, each(|it| it.2)));
    Ok(())
}

/// Returns how many of the wanted connections a tenant sets up per second, and how many SYNs per
/// second the other tenant's flood has.
fn beside(bench: &Bench<'_>, is_flooded: bool) -> Result<(f64, f64)> {
    let vif = |vlan| weir::Vif { vlan: Some(vlan), ..weir::Vif::default() };
    let vifs = [1, 1, 2, 2].map(vif).to_vec();
    let group = Some(RULES);
    let setup = Setup { cpu: Some(SWITCH_CPU), group, vifs, ..Setup::default() };
    let switch = Weir::start(bench.lab, &setup)?;
    let [mut tenant, mut other] = [Client::at(&switch, 0)?, Client::at(&switch, 2)?];
    tenant.meet()?;
    other.meet()?;
    let (begun, ends) = (Instant::now(), AtomicBool::new(false));
    thread::scope(|scope| {
        let flood = is_flooded.then(|| scope.spawn(|| other.flood(&ends)));
        let rate = on_client_cpu(|| {
            tenant.paced(WARM_UP)?;
            tenant.paced(TIME)
        });
        ends.store(true, Ordering::Relaxed);
        let syns = flood.map_or(Ok(0), |flood| {
            flood.join().map_err(|_| Error::Check("the flood panicked".into()))
        })?;
        Ok((rate?, f64::from(syns) / begun.elapsed().as_secs_f64()))
    })
}

/// Measures the packets for each second that weir spends on packets, with groups relative to
/// without.
pub(super) fn cost(bench: &Bench<'_>, report: &mut Report) -> Result<()> {
    for (flows, name, goal) in COSTS {
        let contenders = [Contender::WeirWithGroups, Contender::Weir];
        let measure = |contender| through(bench, contender, Load::Flows(flows));
        let found = bench.interleaved("packets/s", contenders, measure, |rate| rate.per_second)?;
        let [with, without]: [Samples; 2] =
            found.map(|rates| rates.iter().filter_map(|rate| rate.per_busy_second).collect());
        let what = format!(
            "64 B for each second that weir spends on packets, {flows} flows in turn: with groups against without"
        );
        let figure = Figure::ratio(name, what, with.ratio_to(&without));
        report.add(figure.goal(Some(Goal::AtLeast(goal))));
    }
    Ok(())
}

/// Adds `NAME_vs_ovs_dpdk_ct`, with the client's limit, and the ratio by seconds spent on packets.
fn compare(
    bench: &Bench<'_>,
    report: &mut Report,
    name: &str,
    unit: &'static str,
    what: &'static str,
    load: Load,
) -> Result<()> {
    let contenders = [Contender::WeirWithGroups, Contender::OvsDpdkConntrack];
    let measure = |contender| through(bench, contender, load);
    let [weir, peer] = bench.interleaved(unit, contenders, measure, |rate| rate.per_second)?;
    let rates = |of: &[Rate]| of.iter().map(|rate| rate.per_second).collect::<Samples>();
    let busy = |of: &[Rate]| of.iter().filter_map(|rate| rate.per_busy_second).collect::<Samples>();
    let limits = weir.iter().map(|rate| rate.limit).collect::<Samples>();
    let [weir_busy, peer_busy] = [busy(&weir), busy(&peer)];
    let [weir, peer] = [rates(&weir), rates(&peer)];

    let ratio = Figure::ratio(format!("{name}_vs_ovs_dpdk_ct"), what, weir.ratio_to(&peer));
    report.add(ratio.goal(Some(Goal::AtLeast(3.0))));
    let limit =
        "the same were the switch's time nothing: the client's core, which then never waits";
    report.add(Figure::ratio(
        format!("{name}_vs_ovs_dpdk_ct_limit"),
        limit,
        limits.ratio_to(&peer),
    ));
    let busy = "the same for each second that the switches spend on packets, by their own counts";
    let name_of_busy = format!("{name}_busy_vs_ovs_dpdk_ct");
    report.add(Figure::ratio(name_of_busy, busy, weir_busy.ratio_to(&peer_busy)));
    report.add(Figure::new(format!("{name}_weir"), unit, what, weir));
    report.add(Figure::new(format!("{name}_ovs_dpdk_ct"), unit, what, peer));
    Ok(())
}

/// Starts `contender` and puts `load` on it.
fn through(bench: &Bench<'_>, contender: Contender, load: Load) -> Result<Rate> {
    let switch = contender.start(bench.lab, Some(SWITCH_CPU))?;
    let mut client = Client::connect(&*switch)?;
    on_client_cpu(|| {
        client.meet()?;
        client.load(load, WARM_UP)
    })?;
    let before = switch.work()?;
    let Count { per_second, limit } = on_client_cpu(|| client.load(load, TIME))?;
    let busy = before.zip(switch.work()?).map(|(before, now)| now.share_since(before));
    Ok(Rate { per_second, per_busy_second: busy.map(|busy| per_second / busy), limit })
}

/// Runs `work` in a thread on the client's CPU. Programs that the calling thread starts later may run anywhere.
fn on_client_cpu<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            pin(CLIENT_CPU)?;
            work()
        });
        worker.join().map_err(|_| Error::Check("the client panicked".into()))?
    })
}

/// The two guests: the first opens every connection, the second answers.
struct Client {
    guests: [Guest; 2],
    /// Index of the first guest's interface.
    first: u8,
    frames: Frames,
    /// Flows of which both guests have sent a frame.
    established: u32,
    /// Connections opened.
    opened: u32,
}

struct Guest {
    _session: Vif,
    ring: QueuePair,
}

/// The results of a load.
struct Count {
    per_second: f64,
    limit: f64,
}

/// Counts frames or connections over a time.
struct Watch {
    begun: Instant,
    time: Duration,
    /// The end of the latest look.
    looked: Instant,
    /// Time of polls that found frames.
    busy: Duration,
    counted: u64,
    last_arrival: Instant,
}

impl Watch {
    fn start(time: Duration) -> Self {
        let now = Instant::now();
        Self { begun: now, time, looked: now, busy: Duration::ZERO, counted: 0, last_arrival: now }
    }

    /// Counts a poll of both rings that found `arrived` frames, of which `counted` count. Returns
    /// true until the time is over.
    fn look(&mut self, arrived: u32, counted: u32) -> Result<bool> {
        let now = Instant::now();
        if arrived > 0 {
            self.busy += now - self.looked;
            self.last_arrival = now;
        }
        self.looked = now;
        self.counted += u64::from(counted);
        check(now - self.last_arrival < PATIENCE, || "frames were lost".into())?;
        Ok(now - self.begun < self.time)
    }

    fn count(&self) -> Count {
        let counted = self.counted as f64;
        let per_second = counted / (self.looked - self.begun).as_secs_f64();
        Count { per_second, limit: counted / self.busy.as_secs_f64() }
    }
}

impl Client {
    fn connect(switch: &dyn Switch) -> Result<Self> {
        Self::at(switch, 0)
    }

    /// The guests at interface `first` and the next.
    fn at(switch: &dyn Switch, first: u8) -> Result<Self> {
        let mut guests = Vec::new();
        for index in first..first + 2 {
            let socket = switch.link(index)?.socket;
            let failed =
                |error| Error::Check(format!("the guest at {}: {error}", socket.display()));
            let mut session = Vif::connect(&socket, &Options::new(mac(index))).map_err(failed)?;
            let ring = session.queue_pairs().remove(0);
            guests.push(Guest { _session: session, ring });
        }
        let guests = guests.try_into().map_err(|_| Error::Check("not two guests".into()))?;
        Ok(Self { guests, first, frames: Frames::of(0), established: 0, opened: 0 })
    }

    /// Each guest asks for the other by ARP until the other receives the request, so that the
    /// switch knows both.
    fn meet(&mut self) -> Result<()> {
        for index in 0..2_u8 {
            let begun = Instant::now();
            loop {
                check(begun.elapsed() < PATIENCE, || "the guests do not hear each other".into())?;
                self.guests[usize::from(index)].send(&who_has(self.first + index))?;
                self.guests[usize::from(index)].ring.flush();
                thread::sleep(Duration::from_millis(50));
                if self.guests[usize::from(1 - index)].take(u32::MAX, |_| ()) > 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    fn load(&mut self, load: Load, time: Duration) -> Result<Count> {
        match load {
            Load::Flows(flows) => self.flows(flows, time),
            Load::Connections => self.connections(time),
        }
    }

    /// Sends frames of `flows` flows in turn, both ways.
    fn flows(&mut self, flows: u32, time: Duration) -> Result<Count> {
        while self.established < flows {
            let end = flows.min(self.established + BURST);
            for sender in 0..2 {
                for flow in self.established..end {
                    self.send_udp(sender, flow)?;
                }
                self.guests[sender].ring.flush();
                self.await_frames(1 - sender, end - self.established)?;
            }
            self.established = end;
        }

        let mut next = [0; 2];
        let mut send = |client: &mut Self, sender: usize, number: u32| -> Result<()> {
            for _ in 0..number {
                client.send_udp(sender, next[sender])?;
                next[sender] = (next[sender] + 1) % flows;
            }
            client.guests[sender].ring.flush();
            Ok(())
        };
        for sender in 0..2 {
            send(self, sender, IN_FLIGHT)?;
        }
        let mut watch = Watch::start(time);
        loop {
            let mut arrived = 0;
            for receiver in 0..2 {
                let taken = self.guests[receiver].take(BURST, |_| ());
                send(self, 1 - receiver, taken)?;
                arrived += taken;
            }
            if !watch.look(arrived, arrived)? {
                break;
            }
        }
        for receiver in 0..2 {
            self.await_frames(receiver, IN_FLIGHT)?;
        }
        Ok(watch.count())
    }

    /// Opens and closes connections. Their state is in their frames.
    fn connections(&mut self, time: Duration) -> Result<Count> {
        for _ in 0..OPENING {
            self.open()?;
        }
        self.guests[0].ring.flush();
        let mut watch = Watch::start(time);
        let (mut open, mut goes_on) = (OPENING, true);
        while open > 0 {
            let (arrived, closed) = self.go_on(goes_on)?;
            open -= if goes_on { 0 } else { closed };
            goes_on &= watch.look(arrived, closed)?;
        }
        Ok(watch.count())
    }

    /// Takes frames of connections, and answers them. Opens another connection for each that is closed, if `opens`.
    /// Returns the frames that arrived, and the connections that are closed.
    fn go_on(&mut self, opens: bool) -> Result<(u32, u32)> {
        let (mut arrived, mut closed) = (0, 0);
        for receiver in 0..2 {
            let mut heard = [([0; FRAME], 0_u8); BURST as usize];
            let mut frames = heard.iter_mut();
            let taken = self.guests[receiver].take(BURST, |frame| {
                if let Some((bytes, flags)) = frames.next() {
                    frame.read(bytes);
                    *flags = bytes[FLAGS];
                }
            });
            for (frame, flags) in heard.iter().take(taken as usize) {
                match (receiver, *flags) {
                    (1, SYN) => self.answer(1, frame, SYN | ACK)?,
                    (0, flags) if flags == SYN | ACK => {
                        self.answer(0, frame, ACK)?;
                        self.answer(0, frame, FIN | ACK)?;
                    }
                    (1, flags) if flags == FIN | ACK => self.answer(1, frame, FIN | ACK)?,
                    (0, flags) if flags == FIN | ACK => {
                        self.answer(0, frame, ACK)?;
                        closed += 1;
                        if opens {
                            self.open()?;
                        }
                    }
                    _ => {}
                }
            }
            self.guests[receiver].ring.flush();
            arrived += taken;
        }
        Ok((arrived, closed))
    }

    /// Opens [`WANTED`] connections a second and closes them, and sleeps between. Returns how many a second are closed.
    fn paced(&mut self, time: Duration) -> Result<f64> {
        let begun = Instant::now();
        let (mut opened, mut closed, mut last_arrival) = (0, 0, begun);
        while begun.elapsed() < time || closed < opened {
            let due = (begun.elapsed().min(time).as_secs_f64() * WANTED) as u32;
            while opened < due.min(closed + OPENING) {
                self.open()?;
                opened += 1;
            }
            self.guests[0].ring.flush();
            let (arrived, now_closed) = self.go_on(false)?;
            closed += now_closed;
            if arrived > 0 || closed == opened {
                last_arrival = Instant::now();
            }
            check(last_arrival.elapsed() < PATIENCE, || "frames were lost".into())?;
            thread::sleep(Duration::from_micros(200));
        }
        Ok(f64::from(closed) / begun.elapsed().as_secs_f64())
    }

    /// Opens connections as fast as the ring takes them, and confirms none. Returns how many have arrived.
    fn flood(&mut self, ends: &AtomicBool) -> u32 {
        let (from, to) = (mac(self.first).0, mac(self.first + 1).0);
        let mut arrived = 0_u32;
        while !ends.load(Ordering::Relaxed) {
            for _ in 0..BURST {
                let number = self.opened;
                let mut frame = self.frames.at(number / PORTS).tcp(0, port(number), SYN);
                frame[..6].copy_from_slice(&to);
                frame[6..12].copy_from_slice(&from);
                if self.guests[0].send(&frame).is_err() {
                    break;
                }
                self.opened = self.opened.wrapping_add(1);
            }
            self.guests[0].ring.flush();
            arrived = arrived.wrapping_add(self.guests[1].take(u32::MAX, |_| ()));
        }
        arrived
    }

    /// Waits for `number` frames at guest `receiver`.
    fn await_frames(&mut self, receiver: usize, number: u32) -> Result<()> {
        let begun = Instant::now();
        let mut left = number;
        while left > 0 {
            left -= self.guests[receiver].take(left, |_| ());
            check(begun.elapsed() < PATIENCE, || format!("{left} frames were lost"))?;
        }
        Ok(())
    }

    fn send_udp(&mut self, sender: usize, flow: u32) -> Result<()> {
        let frame = self.frames.at(flow / PORTS).udp(sender, port(flow));
        self.guests[sender].send(&frame)
    }

    fn open(&mut self) -> Result<()> {
        let number = self.opened;
        self.opened = self.opened.wrapping_add(1);
        let frame = self.frames.at(number / PORTS).tcp(0, port(number), SYN);
        self.guests[0].send(&frame)
    }

    /// Sends a segment of the connection of which `sender` got a frame.
    fn answer(&mut self, sender: usize, heard: &[u8; FRAME], flags: u8) -> Result<()> {
        // The client's end is the source of what the server hears, and the destination of what the client hears.
        let (address, port) = if sender == 1 { (IP + 12, L4) } else { (IP + 16, L4 + 2) };
        let address = u32::from(u16::from_be_bytes([heard[address + 1], heard[address + 2]]));
        let port = u16::from_be_bytes([heard[port], heard[port + 1]]);
        let frame = self.frames.at(address).tcp(sender, port, flags);
        self.guests[sender].send(&frame)
    }
}

impl Guest {
    fn send(&mut self, frame: &[u8]) -> Result<()> {
        let sent = self.ring.send(frame, &Offload::NONE);
        sent.map_err(|error| Error::Check(format!("a guest cannot send: {error}")))
    }

    /// Takes at most `most` frames. Returns their number.
    fn take(&mut self, most: u32, mut look: impl FnMut(&weir_vif::Frame<'_>)) -> u32 {
        let mut taken = 0;
        while taken < most && self.ring.recv(&mut look).is_some() {
            taken += 1;
        }
        taken
    }
}

/// Frames between the server and one address of the client, made once: only the client's port differs.
struct Frames {
    address: u32,
    /// The frames of UDP, by sender.
    udp: [[u8; FRAME]; 2],
    /// By sender and flags: a frame, and the sum of its segment without the client's port.
    tcp: [[([u8; FRAME], u16); 32]; 2],
}

impl Frames {
    /// Frames of the client's address number `address`.
    fn of(address: u32) -> Self {
        let udp = [0, 1].map(|sender| ip_frame(sender, address, protocol::UDP));
        let tcp = [0, 1].map(|sender| {
            let mut flags = 0;
            [(); 32].map(|()| {
                let made = segment(sender, address, flags);
                flags += 1;
                made
            })
        });
        Self { address, udp, tcp }
    }

    fn at(&mut self, address: u32) -> &Self {
        if self.address != address {
            *self = Self::of(address);
        }
        self
    }

    fn udp(&self, sender: usize, port: u16) -> [u8; FRAME] {
        let mut frame = self.udp[sender];
        let at = client_port(sender);
        frame[at..at + 2].copy_from_slice(&port.to_be_bytes());
        frame
    }

    fn tcp(&self, sender: usize, port: u16, flags: u8) -> [u8; FRAME] {
        let (mut frame, sum) = self.tcp[sender][usize::from(flags)];
        let at = client_port(sender);
        frame[at..at + 2].copy_from_slice(&port.to_be_bytes());
        let mut all = Sum::new();
        all.add_u16(sum);
        all.add_u16(port);
        frame[TCP_CHECKSUM..TCP_CHECKSUM + 2].copy_from_slice(&all.finish().to_be_bytes());
        frame
    }
}

/// The client's port of flow `number`.
fn port(number: u32) -> u16 {
    FIRST_PORT + (number % PORTS) as u16
}

/// Offset of the client's port in frames from `sender`.
fn client_port(sender: usize) -> usize {
    if sender == 0 { L4 } else { L4 + 2 }
}

/// The client's address number `number`.
fn client_address(number: u32) -> Ipv4Addr {
    let [high, low] = (number as u16).to_be_bytes();
    Ipv4Addr::new(10, high, low, 2)
}

fn mac(index: u8) -> Mac {
    address::mac(index).parse().expect("an address of the test bed")
}

/// A frame from `sender` to the other guest, with UDP's header or an empty one of TCP, without the client's port.
fn ip_frame(sender: usize, address: u32, protocol: u8) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    let macs = [mac(0), mac(1)];
    frame[..6].copy_from_slice(&macs[1 - sender].0);
    frame[6..12].copy_from_slice(&macs[sender].0);
    frame[12..IP].copy_from_slice(&[0x08, 0x00]);
    let ends = [client_address(address), SERVER];
    let l3 = &mut frame[IP..L4];
    let len = if protocol == protocol::TCP { 40_u16 } else { (FRAME - IP) as u16 };
    l3[0] = 0x45;
    l3[2..4].copy_from_slice(&len.to_be_bytes());
    l3[8] = 64;
    l3[9] = protocol;
    l3[12..16].copy_from_slice(&ends[sender].octets());
    l3[16..20].copy_from_slice(&ends[1 - sender].octets());
    let checksum = ipv4_header_checksum(l3);
    l3[10..12].copy_from_slice(&checksum.to_be_bytes());
    let server_port = client_port(1 - sender);
    frame[server_port..server_port + 2].copy_from_slice(&SERVER_PORT.to_be_bytes());
    if protocol == protocol::UDP {
        // The datagram has no checksum, which IPv4 allows.
        frame[L4 + 4..L4 + 6].copy_from_slice(&(len - 20).to_be_bytes());
    }
    frame
}

/// A TCP segment without data, and its sum without the client's port.
fn segment(sender: usize, address: u32, flags: u8) -> ([u8; FRAME], u16) {
    /// First sequence numbers of the client and the server.
    const ISN: [u32; 2] = [1000, 5000];
    let mut frame = ip_frame(sender, address, protocol::TCP);
    // Every SYN and FIN counts as one byte. The client's last ACK follows both FINs. Its ACK of the
    // handshake precedes them.
    let own = ISN[sender] + u32::from(flags & SYN == 0);
    let other = if flags & ACK == 0 {
        0
    } else {
        ISN[1 - sender] + 1 + u32::from(sender == 1 && flags & FIN != 0)
    };
    let l4 = &mut frame[L4..L4 + 20];
    l4[4..8].copy_from_slice(&own.to_be_bytes());
    l4[8..12].copy_from_slice(&other.to_be_bytes());
    l4[12] = 0x50;
    l4[13] = flags;
    l4[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
    let ends = [client_address(address), SERVER];
    let mut sum = pseudo_header_v4(ends[sender], ends[1 - sender], protocol::TCP, 20);
    sum.add(l4);
    (frame, sum.folded())
}

/// An ARP request of guest `index` for the other.
fn who_has(index: u8) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    let own = mac(index).0;
    let is_client = index.is_multiple_of(2);
    let ends = if is_client { [client_address(0), SERVER] } else { [SERVER, client_address(0)] };
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&own);
    frame[12..22].copy_from_slice(&[0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
    frame[22..28].copy_from_slice(&own);
    frame[28..32].copy_from_slice(&ends[0].octets());
    frame[38..42].copy_from_slice(&ends[1].octets());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_has_the_checksums_and_ends_of_its_flow() {
        let mut frames = Frames::of(0);
        for number in [0, 1, PORTS - 1, PORTS, 70_000, 300 * PORTS + 5] {
            for sender in [0, 1] {
                let made = frames.at(number / PORTS);
                let (udp, syn) =
                    (made.udp(sender, port(number)), made.tcp(sender, port(number), SYN));
                for frame in [udp, syn] {
                    assert_eq!(weir_wire::checksum::partial(&frame[IP..L4]), 0xffff);
                    let at = client_port(sender);
                    assert_eq!(frame[at..at + 2], port(number).to_be_bytes());
                    let client = if sender == 0 { IP + 12 } else { IP + 16 };
                    assert_eq!(frame[client..client + 4], client_address(number / PORTS).octets());
                }
                let ends = [client_address(number / PORTS), SERVER];
                let mut sum = pseudo_header_v4(ends[sender], ends[1 - sender], protocol::TCP, 20);
                sum.add(&syn[L4..L4 + 20]);
                assert_eq!(sum.folded(), 0xffff);
            }
        }
    }
}
