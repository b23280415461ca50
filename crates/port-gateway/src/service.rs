//! The thread that answers for weir in one network.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use weir_engine::{beat, clock, lock, supervise};
use weir_fabric::PortId;
use weir_limits::{
    LEASES_RETRY_SECS, MULTICAST_QUERY_SECS, MULTICAST_RESPONSE_SECS, RA_INTERVAL_SECS,
};
use weir_wire::ethernet::HEADER_LEN;
use weir_wire::layers::IPV6_HEADER_LEN;
use weir_wire::{Layers, Mac, Network};

use crate::advert::{advertisement, link_local, query, source};
use crate::answer::{DHCP_PORTS, DNS_PORT, Station, Wanted};
use crate::desk::{Arrival, Desk, Woken};
use crate::dhcp::{Asker, Dhcp, DhcpSettings, Done};
use crate::dhcp6;
use crate::forward::{Back, Dial, Forwarder, Question};
use crate::frame::Way;
use crate::leases::{Hold, Leases};
use crate::names::{Directory, Names, Said};
use crate::port::{GatewayPort, Guest};
use crate::store::Store;
use crate::stream::{StreamId, Streams};

#[cfg(test)]
mod tests;

/// The time between two rounds of unsolicited advertisements.
const ADVERTISES_EVERY: Duration = Duration::from_secs(RA_INTERVAL_SECS);
/// The time between two rounds of queries for multicast groups.
const ASKS_EVERY: Duration = Duration::from_secs(MULTICAST_QUERY_SECS as u64);
const RETRIES_AFTER: Duration = Duration::from_secs(LEASES_RETRY_SECS);

/// The settings of DNS in a network.
pub struct NamesSettings {
    /// The domain of the guests' names.
    pub domain: String,
    /// Subnets of the network.
    pub subnets: Vec<IpNet>,
    /// Makes sockets to the host's resolvers, if guests can ask for other names.
    pub dial: Option<Dial>,
}

/// The thread. A drop ends it.
pub struct Service {
    desk: Arc<Desk>,
    leases: Arc<Mutex<Leases>>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts to answer behind `port`. Leases outlive weir in the [`Store`], if there is one.
    ///
    /// # Errors
    /// The leases cannot be read, or a thread cannot be started.
    pub fn start(
        port: &GatewayPort,
        dhcp: Option<(DhcpSettings, Option<Store>)>,
        names: Option<NamesSettings>,
    ) -> io::Result<Self> {
        let mut clerk = Clerk::new(port, dhcp, names)?;
        let (desk, leases) = (Arc::clone(&clerk.desk), Arc::clone(&clerk.shown));
        let run = move || {
            supervise("weir-gateway", || clerk.run());
        };
        let thread = std::thread::Builder::new().name("weir-gateway".into()).spawn(run)?;
        Ok(Self { desk, leases, thread: Some(thread) })
    }

    /// The addresses that are bound now, each with its client's MAC address.
    pub fn bound(&self) -> Vec<(Ipv4Addr, Mac)> {
        bound(&self.leases, clock::secs(clock::now_ns()))
    }
}

/// Guests' answers wait for [`READ_AT_ONCE`](weir_limits::READ_AT_ONCE) leases at most.
fn bound(leases: &Mutex<Leases>, now_secs: u32) -> Vec<(Ipv4Addr, Mac)> {
    let (mut bound, mut last) = (Vec::new(), None);
    loop {
        let before = last;
        for (address, lease) in lock(leases).after(last) {
            last = Some(address);
            if lease.hold == Hold::Bound && lease.holds(now_secs) {
                bound.push((address, lease.client.mac));
            }
        }
        if last == before {
            return bound;
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.desk.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's state.
pub(crate) struct Clerk {
    station: Station,
    desk: Arc<Desk>,
    pub(crate) dhcp: Option<(Dhcp, Option<Store>)>,
    names: Option<(Names, Option<Forwarder>)>,
    streams: Streams,
    /// A copy of the leases for other threads.
    shown: Arc<Mutex<Leases>>,
    /// The time of the next attempt to save leases, after one has failed and was logged.
    retries: Option<Instant>,
    /// The time of the next round of advertisements, if weir sends them.
    advertises: Option<Instant>,
    /// The time of the next round of queries for multicast groups, if the network has snooping.
    asks: Option<Instant>,
}

impl Clerk {
    pub(crate) fn new(
        port: &GatewayPort,
        dhcp: Option<(DhcpSettings, Option<Store>)>,
        names: Option<NamesSettings>,
    ) -> io::Result<Self> {
        let desk = Arc::clone(port.desk());
        let shown = Arc::new(Mutex::new(Leases::default()));
        let dhcp = dhcp
            .map(|(settings, mut store)| {
                let now_secs = clock::secs(clock::now_ns());
                let load = |store: &mut Store| store.load(now_secs, settings.lease_secs);
                let leases = store.as_mut().map(load).transpose()?.unwrap_or_default();
                io::Result::Ok((Dhcp::new(settings, leases), store))
            })
            .transpose()?;
        if let Some((dhcp, _)) = &dhcp {
            lock(&shown).clone_from(dhcp.leases());
        }
        let names = names
            .and_then(|NamesSettings { domain, subnets, dial }| {
                Some((Names::new(&domain, subnets, dial.is_some())?, dial))
            })
            .map(|(names, dial)| {
                let forwarder = dial.map(|dial| Forwarder::start(Arc::clone(&desk), dial));
                io::Result::Ok((names, forwarder.transpose()?))
            })
            .transpose()?;
        Ok(Self {
            station: port.station().clone(),
            desk,
            dhcp,
            names,
            streams: Streams::default(),
            shown,
            retries: None,
            // Advertisements of an earlier weir stay valid for their lifetimes.
            advertises: port.station().ra.as_ref().map(|_| Instant::now()),
            asks: port.desk().snooping.as_ref().map(|_| Instant::now()),
        })
    }

    fn run(&mut self) {
        // After a panic the loop starts again.
        let mut knows_guests = false;
        loop {
            let woken = beat::wait(|| {
                let due = [self.advertises, self.asks, self.streams.due()];
                self.desk.wait(due.into_iter().flatten().min())
            });
            let Woken::Work(arrivals, told, changed) = woken else { return };
            let changed = !std::mem::replace(&mut knows_guests, true) || changed;
            self.turn(&arrivals, told, changed, clock::secs(clock::now_ns()));
        }
    }

    /// Answers these frames, takes what the resolver has `told` connections, and does what is due. `changed`: guests were
    /// added or removed.
    pub(crate) fn turn(
        &mut self,
        arrivals: &[Arrival],
        told: Vec<(StreamId, Vec<u8>)>,
        changed: bool,
        now_secs: u32,
    ) {
        if let Some((dhcp, _)) = self.dhcp.as_mut().filter(|_| changed) {
            let guests = self.desk.guests();
            dhcp.set_vifs(guests.into_iter().map(|guest| (guest.vif, guest.fixed)));
        }
        let mut answers = Vec::new();
        if self.advertises.is_some_and(|at| Instant::now() >= at) {
            self.advertises = Some(Instant::now() + ADVERTISES_EVERY);
            for (port, mac, served) in self.desk.stations(now_secs) {
                answers.extend(self.advertise(mac, &served.guest).map(|frame| (port, frame)));
            }
        }
        if self.asks.is_some_and(|at| Instant::now() >= at) {
            self.asks = Some(Instant::now() + ASKS_EVERY);
            answers.extend(self.ask_for_groups(now_secs));
        }
        for arrival in arrivals {
            match arrival.wanted {
                Wanted::Stream(at) => {
                    self.stream(arrival, at.into(), now_secs, &mut answers);
                }
                _ => answers.extend(self.answer(arrival, now_secs)),
            }
        }
        let now = Instant::now();
        for (stream, answer) in told {
            self.streams.answer(stream, &answer, now, &mut answers);
        }
        self.streams.look(now, &mut answers);
        self.desk.counters.over_rate.add(std::mem::take(&mut self.streams.refused));
        // Leases are saved before the answers leave: a client relies on its answer (RFC 2131 §3.1).
        self.save(now_secs);
        self.desk.send(answers);
    }

    /// Queries for the multicast groups of all guests, for the IP versions in which nobody else asks.
    fn ask_for_groups(&self, now_secs: u32) -> Vec<(PortId, Vec<u8>)> {
        let Some((snooping, own)) = &self.desk.snooping else { return Vec::new() };
        let (mac, of) = (self.station.mac, (*own, self.desk.vid));
        let stations = self.desk.stations(now_secs);
        let mut queries = Vec::new();
        for v6 in [false, true] {
            if snooping.hears_other(of, v6, now_secs) {
                continue;
            }
            let from = source(mac, &self.station.ips, v6);
            let asked = stations.iter().map(|(port, ..)| *port);
            snooping.asks(of, from, asked, MULTICAST_RESPONSE_SECS, now_secs);
            queries.extend(stations.iter().map(|(port, to, _)| (*port, query(mac, *to, from))));
        }
        queries
    }

    fn answer(&mut self, arrival: &Arrival, now_secs: u32) -> Option<(PortId, Vec<u8>)> {
        let counters = &self.desk.counters;
        let frame = match arrival.wanted {
            Wanted::Neighbour => {
                let answer = self.station.neighbour(&arrival.frame);
                let counter =
                    if answer.is_some() { &counters.neighbours } else { &counters.ignored };
                counter.add(1);
                answer?
            }
            Wanted::Echo => {
                let answer = self.station.echo(&arrival.frame);
                let counter = if answer.is_some() { &counters.echoes } else { &counters.ignored };
                counter.add(1);
                answer?
            }
            Wanted::Routers => {
                let Some(asker) = self.station.asker(&arrival.frame) else {
                    counters.ignored.add(1);
                    return None;
                };
                self.advertise(asker, &arrival.served.guest)?
            }
            Wanted::Dhcp(at) => self.dhcp(arrival, usize::from(at), now_secs)?,
            Wanted::Dhcp6(at) => {
                let answer = self.dhcp6(arrival, usize::from(at));
                let counter = if answer.is_some() { &counters.informed } else { &counters.ignored };
                counter.add(1);
                answer?
            }
            Wanted::Names(at) => self.names(arrival, usize::from(at), now_secs)?,
            Wanted::Stream(_) => return None,
        };
        Some((arrival.from, frame))
    }

    /// A router advertisement for a station of this guest.
    fn advertise(&self, to: Mac, guest: &Guest) -> Option<Vec<u8>> {
        let told = advertisement(self.station.mac, to, self.station.ra.as_ref()?, guest.mtu)?;
        self.desk.counters.advertised.add(1);
        Some(told)
    }

    /// Handles the DHCP message in the datagram at `at`.
    fn dhcp(&mut self, arrival: &Arrival, at: usize, now_secs: u32) -> Option<Vec<u8>> {
        let (dhcp, _) = self.dhcp.as_mut()?;
        let mac = weir_wire::Ethernet::parse(&arrival.frame).ok()?.src;
        let guest = &arrival.served.guest;
        let asker = Asker { vif: &guest.vif, mac, mtu: guest.mtu };
        let message = payload(&arrival.frame, at)?;
        let (done, reply) = dhcp.take(&asker, message, now_secs);
        let counters = &self.desk.counters;
        match done {
            Done::Offered => counters.offered.add(1),
            Done::Given => counters.given.add(1),
            Done::Informed => counters.informed.add(1),
            Done::Refused => counters.refused.add(1),
            Done::Released => counters.released.add(1),
            Done::Declined => counters.declined.add(1),
            Done::NoAddress => counters.no_address.add(1),
            Done::Ignored => counters.ignored.add(1),
        }
        let reply = reply?;
        let from = (dhcp.settings().own.addr(), DHCP_PORTS.dst).into();
        let way =
            Way { macs: (self.station.mac, mac), from, to: (reply.to, DHCP_PORTS.src).into() };
        way.datagram(&reply.bytes)
    }

    /// The answer to the DHCPv6 message in the datagram at `at`.
    fn dhcp6(&self, arrival: &Arrival, at: usize) -> Option<Vec<u8>> {
        let asker = weir_wire::Ethernet::parse(&arrival.frame).ok()?.src;
        let Network::Ipv6(ip) = Layers::parse(&arrival.frame).ok()?.network else { return None };
        let message = payload(&arrival.frame, at)?;
        let reply = dhcp6::reply(self.station.mac, self.station.ra.as_ref()?, message)?;
        let from = (link_local(self.station.mac), dhcp6::PORTS.dst).into();
        let macs = (self.station.mac, asker);
        Way { macs, from, to: (ip.src, dhcp6::PORTS.src).into() }.datagram(&reply)
    }

    /// Handles the DNS question in the datagram at `at`.
    fn names(&self, arrival: &Arrival, at: usize, now_secs: u32) -> Option<Vec<u8>> {
        let way = self.way_back(arrival, at)?;
        let question = payload(&arrival.frame, at)?;
        way.datagram(&self.name(arrival.from, question, Back::Datagram(way), now_secs)?)
    }

    /// Handles the segment at `at`, and the questions that end with it.
    fn stream(
        &mut self,
        arrival: &Arrival,
        at: usize,
        now_secs: u32,
        answers: &mut Vec<(PortId, Vec<u8>)>,
    ) {
        let now = Instant::now();
        let segment = segment(&arrival.frame, at);
        let (Some(way), Some(segment)) = (self.way_back(arrival, at), segment) else {
            self.desk.counters.ignored.add(1);
            return;
        };
        for (stream, question) in self.streams.take(arrival.from, way, segment, now, answers) {
            let answer = self.name(arrival.from, &question, Back::Stream(stream), now_secs);
            if let Some(answer) = answer {
                self.streams.answer(stream, &answer, now, answers);
            }
        }
    }

    /// The way from weir's DNS to the sender of the datagram or segment at `at`.
    fn way_back(&self, arrival: &Arrival, at: usize) -> Option<Way> {
        let frame = &arrival.frame;
        let mac = weir_wire::Ethernet::parse(frame).ok()?.src;
        let (asker, own): (IpAddr, IpAddr) = match Layers::parse(frame).ok()?.network {
            Network::Ipv4(ip) => (ip.src.into(), ip.dst.into()),
            Network::Ipv6(ip) => (ip.src.into(), ip.dst.into()),
            Network::Other => return None,
        };
        let port = frame.get(at..at + 2)?.try_into().map(u16::from_be_bytes).ok()?;
        let (from, to) = (SocketAddr::new(own, DNS_PORT), SocketAddr::new(asker, port));
        Some(Way { macs: (self.station.mac, mac), from, to })
    }

    /// weir's answer to a question, if it need not be asked elsewhere.
    fn name(&self, from: PortId, question: &[u8], back: Back, now_secs: u32) -> Option<Vec<u8>> {
        let (names, forwarder) = self.names.as_ref()?;
        let here = Here { desk: &self.desk, dhcp: self.dhcp.as_ref().map(|it| &it.0), now_secs };
        let counters = &self.desk.counters;
        match (names.take(question, back.room(), &here), forwarder) {
            (Said::Answer(bytes), _) => {
                counters.dns_answered.add(1);
                Some(bytes)
            }
            (Said::Ask(asked), Some(forwarder)) => {
                // A client repeats a datagram by itself. A connection would wait, so it gets a failure.
                let failed = matches!(back, Back::Stream(_)).then(|| asked.failed());
                if forwarder.take(Question { from, asked, back }) {
                    return None;
                }
                counters.over_rate.add(1);
                failed
            }
            (said, _) => {
                counters.ignored.add(1);
                // An empty answer tells the connection that this question gets no answer.
                match (said, back) {
                    (Said::Nothing, Back::Stream(_)) => Some(Vec::new()),
                    _ => None,
                }
            }
        }
    }

    /// Saves leases that have changed. After an error the answers still leave: clients keep their addresses even
    /// without a file.
    fn save(&mut self, now_secs: u32) {
        let Some((dhcp, store)) = &mut self.dhcp else { return };
        let changed = std::mem::take(&mut dhcp.changed);
        if changed.is_empty() && self.retries.is_none() {
            return;
        }
        let now = Instant::now();
        let is_due = self.retries.is_none_or(|at| now >= at);
        if let Some(store) = store.as_mut().filter(|_| is_due) {
            match store.note(dhcp.leases(), &changed, now_secs) {
                Ok(()) => self.retries = None,
                Err(error) => {
                    self.desk.counters.unsaved.add(1);
                    if self.retries.replace(now + RETRIES_AFTER).is_none() {
                        tracing::error!(%error, "leases are not saved: a weir that is started anew does not know them");
                    }
                }
            }
        }
        let mut shown = lock(&self.shown);
        for address in changed {
            if let Some(lease) = dhcp.leases().get(address) {
                shown.put(address, lease.clone(), now_secs);
            }
        }
    }
}

/// The payload of the datagram that begins at `at`.
fn payload(frame: &[u8], at: usize) -> Option<&[u8]> {
    let len = frame.get(at + 4..at + 6)?.try_into().map(u16::from_be_bytes).ok()?;
    Some(frame.get(at + 8..at + usize::from(len)).unwrap_or_default())
}

/// The segment of TCP that begins at `at`, without what pads the frame.
fn segment(frame: &[u8], at: usize) -> Option<&[u8]> {
    let end = HEADER_LEN
        + match Layers::parse(frame).ok()?.network {
            Network::Ipv4(ip) => usize::from(ip.total_len),
            Network::Ipv6(ip) => usize::from(IPV6_HEADER_LEN) + usize::from(ip.payload_len),
            Network::Other => return None,
        };
    frame.get(at..end)
}

/// Guests, by name and by address.
struct Here<'h> {
    desk: &'h Desk,
    dhcp: Option<&'h Dhcp>,
    now_secs: u32,
}

impl Directory for Here<'_> {
    fn addresses_of(&self, vif: &str) -> Option<Vec<IpAddr>> {
        let guest = self.desk.guest(|guest| guest.vif.eq_ignore_ascii_case(vif))?;
        let given = self.dhcp.map(|dhcp| dhcp.addresses_of(&guest.vif, self.now_secs));
        let mut all: Vec<IpAddr> = given.into_iter().flatten().map(IpAddr::from).collect();
        all.extend(guest.ips.iter().filter(|ip| !all.contains(ip)).copied().collect::<Vec<_>>());
        Some(all)
    }

    fn vif_of(&self, address: IpAddr) -> Option<String> {
        let given = match address {
            IpAddr::V4(address) => self.dhcp.and_then(|dhcp| dhcp.vif_of(address, self.now_secs)),
            IpAddr::V6(_) => None,
        };
        let configured = || self.desk.guest(|guest| guest.ips.contains(&address));
        given.map(str::to_owned).or_else(|| configured().map(|guest| guest.vif))
    }
}
