//! The thread that answers for weir in one network.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::net::{SendFlags, sendto};
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
use crate::desk::{Arrival, Desk, GatewayCounters, Woken};
use crate::dhcp::{Asker, Dhcp, DhcpSettings, Done};
use crate::dhcp6::{self, Dhcp6, Dhcp6Settings};
use crate::forward::{Back, Dial, Forwarder, HostSocket, Question};
use crate::frame::Way;
use crate::leases::Leases;
use crate::names::{Directory, Names, Said};
use crate::port::{GatewayPort, Guest};
use crate::store::{Address, Store};
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
    /// The socket at which the host asks. It needs `dial`.
    pub host: Option<HostSocket>,
}

/// The addresses that weir gives in a network, of either IP version. Leases outlive weir in the [`Store`], if there is
/// one.
#[derive(Default)]
pub struct LeaseSettings {
    /// DHCP.
    pub dhcp: Option<(DhcpSettings, Option<Store>)>,
    /// DHCPv6.
    pub dhcp6: Option<(Dhcp6Settings, Option<Store>)>,
}

/// A copy of the leases for other threads.
#[derive(Clone, Default)]
struct Shown {
    v4: Arc<Mutex<Leases>>,
    v6: Arc<Mutex<Leases<Ipv6Addr>>>,
}

/// The thread. A drop ends it.
pub struct Service {
    desk: Arc<Desk>,
    leases: Shown,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts to answer behind `port`.
    ///
    /// # Errors
    /// The leases cannot be read, or a thread cannot be started.
    pub fn start(
        port: &GatewayPort,
        leases: LeaseSettings,
        names: Option<NamesSettings>,
    ) -> io::Result<Self> {
        let mut clerk = Clerk::new(port, leases, names)?;
        let (desk, leases) = (Arc::clone(&clerk.desk), clerk.shown.clone());
        let run = move || {
            supervise("weir-gateway", || clerk.run());
        };
        let thread = std::thread::Builder::new().name("weir-gateway".into()).spawn(run)?;
        Ok(Self { desk, leases, thread: Some(thread) })
    }

    /// The addresses that are bound now, each with its client's MAC address.
    pub fn bound(&self) -> Vec<(IpAddr, Mac)> {
        let now_secs = clock::secs(clock::now_ns());
        let mut all = bound(&self.leases.v4, now_secs);
        all.extend(bound(&self.leases.v6, now_secs));
        all
    }
}

/// Guests' answers wait for [`READ_AT_ONCE`](weir_limits::READ_AT_ONCE) leases at most.
fn bound<A: Address + Into<IpAddr>>(
    leases: &Mutex<Leases<A>>,
    now_secs: u32,
) -> Vec<(IpAddr, Mac)> {
    let (mut bound, mut last) = (Vec::new(), None);
    loop {
        let before = last;
        for (address, lease) in lock(leases).after(last) {
            last = Some(address);
            if lease.is_bound(now_secs) {
                bound.push((address.into(), lease.client.mac));
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
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The file of one server's leases.
#[derive(Default)]
pub(crate) struct Saved {
    store: Option<Store>,
    /// The time of the next attempt to save leases, after one has failed and was logged.
    retries: Option<Instant>,
}

impl Saved {
    /// Reads the leases of before, and shows them.
    fn load<A: Address>(
        mut store: Option<Store>,
        lease_secs: u32,
        shown: &Mutex<Leases<A>>,
    ) -> io::Result<(Self, Leases<A>)> {
        let now_secs = clock::secs(clock::now_ns());
        let load = |store: &mut Store| store.load(now_secs, lease_secs);
        let leases = store.as_mut().map(load).transpose()?.unwrap_or_default();
        lock(shown).clone_from(&leases);
        Ok((Self { store, retries: None }, leases))
    }

    /// Saves leases that have changed, and shows them. After an error the answers still leave: clients keep their
    /// addresses even without a file.
    fn note<A: Address>(
        &mut self,
        (leases, changed): (&Leases<A>, BTreeSet<A>),
        shown: &Mutex<Leases<A>>,
        counters: &GatewayCounters,
        now_secs: u32,
    ) {
        if changed.is_empty() && self.retries.is_none() {
            return;
        }
        let now = Instant::now();
        let is_due = self.retries.is_none_or(|at| now >= at);
        if let Some(store) = self.store.as_mut().filter(|_| is_due) {
            match store.note(leases, &changed, now_secs) {
                Ok(()) => {
                    self.retries = None;
                    counters.mended.add(counters.unsaved.get() - counters.mended.get());
                }
                Err(error) => {
                    counters.unsaved.add(1);
                    if self.retries.replace(now + RETRIES_AFTER).is_none() {
                        tracing::error!(%error, "leases are not saved: a weir that is started anew does not know them");
                    }
                }
            }
        }
        let mut shown = lock(shown);
        for address in changed {
            if let Some(lease) = leases.get(address) {
                shown.put(address, lease.clone(), now_secs);
            }
        }
    }
}

/// The thread's state.
pub(crate) struct Clerk {
    station: Station,
    desk: Arc<Desk>,
    pub(crate) dhcp: Option<(Dhcp, Saved)>,
    dhcp6: Option<(Dhcp6, Saved)>,
    names: Option<(Names, Option<Forwarder>)>,
    /// The way of answers to the host, and the names that the host may learn.
    host: Option<(OwnedFd, Names)>,
    streams: Streams,
    shown: Shown,
    /// The time of the next round of advertisements, if weir sends them.
    advertises: Option<Instant>,
    /// The time of the next round of queries for multicast groups, if the network has snooping.
    asks: Option<Instant>,
}

impl Clerk {
    pub(crate) fn new(
        port: &GatewayPort,
        leases: LeaseSettings,
        names: Option<NamesSettings>,
    ) -> io::Result<Self> {
        let desk = Arc::clone(port.desk());
        let shown = Shown::default();
        let LeaseSettings { dhcp, dhcp6 } = leases;
        let dhcp = dhcp
            .map(|(settings, store)| {
                let (saved, leases) = Saved::load(store, settings.lease_secs, &shown.v4)?;
                io::Result::Ok((Dhcp::new(settings, leases), saved))
            })
            .transpose()?;
        let dhcp6 = dhcp6
            .map(|(settings, store)| {
                let (saved, leases) = Saved::load(store, settings.lease_secs, &shown.v6)?;
                io::Result::Ok((Dhcp6::new(settings, leases), saved))
            })
            .transpose()?;
        let named = names
            .and_then(|NamesSettings { domain, subnets, dial, host }| {
                // The host has resolvers of its own for other names.
                let alone = Names::new(&domain, subnets.clone(), false)?;
                Some((Names::new(&domain, subnets, dial.is_some())?, alone, dial, host))
            })
            .map(|(names, alone, dial, host)| {
                let asked = host.as_ref().map(|(socket, _)| socket.try_clone()).transpose()?;
                let forwarder = dial.map(|dial| Forwarder::start(Arc::clone(&desk), dial, host));
                io::Result::Ok(((names, forwarder.transpose()?), asked.map(|it| (it, alone))))
            })
            .transpose()?;
        let (names, host) = named.unzip();
        Ok(Self {
            station: port.station().clone(),
            desk,
            dhcp,
            dhcp6,
            names,
            host: host.flatten(),
            streams: Streams::default(),
            shown,
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

    /// Answers these frames, passes the resolver's answers (`told`) to their connections, and handles what is due.
    /// `changed`: guests were added or removed.
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
        if let Some((dhcp6, _)) = self.dhcp6.as_mut().filter(|_| changed) {
            let v6 = |ips: Vec<IpAddr>| {
                let all = ips.into_iter();
                all.filter_map(|ip| if let IpAddr::V6(ip) = ip { Some(ip) } else { None }).collect()
            };
            let guests = self.desk.guests().into_iter();
            dhcp6.set_vifs(guests.map(|guest| (guest.vif, v6(guest.ips))));
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
        for (from, question) in self.desk.host_asked() {
            self.tell_host(from, &question, now_secs);
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
            Wanted::Dhcp6(at) => self.dhcp6(arrival, usize::from(at), now_secs)?,
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
        count(&self.desk.counters, done);
        let reply = reply?;
        let from = (dhcp.settings().own.addr(), DHCP_PORTS.dst).into();
        let way =
            Way { macs: (self.station.mac, mac), from, to: (reply.to, DHCP_PORTS.src).into() };
        way.datagram(&reply.bytes)
    }

    /// Handles the DHCPv6 message in the datagram at `at`.
    fn dhcp6(&mut self, arrival: &Arrival, at: usize, now_secs: u32) -> Option<Vec<u8>> {
        let mac = weir_wire::Ethernet::parse(&arrival.frame).ok()?.src;
        let Network::Ipv6(ip) = Layers::parse(&arrival.frame).ok()?.network else { return None };
        let message = payload(&arrival.frame, at)?;
        let (own, told) = (self.station.mac, self.station.ra.as_ref()?);
        let guest = &arrival.served.guest;
        let (done, reply) = match &mut self.dhcp6 {
            Some((dhcp6, _)) => {
                let asker = Asker { vif: &guest.vif, mac, mtu: guest.mtu };
                dhcp6.take(&asker, (own, told), message, now_secs)
            }
            None => dhcp6::inform(own, told, message),
        };
        count(&self.desk.counters, done);
        let from = (link_local(own), dhcp6::PORTS.dst).into();
        Way { macs: (own, mac), from, to: (ip.src, dhcp6::PORTS.src).into() }.datagram(&reply?)
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

    /// weir's answer to a question, if weir need not ask elsewhere.
    fn name(&self, from: PortId, question: &[u8], back: Back, now_secs: u32) -> Option<Vec<u8>> {
        let (names, forwarder) = self.names.as_ref()?;
        let here = self.here(now_secs);
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

    /// Answers a question of the host's own.
    fn tell_host(&self, from: SocketAddr, question: &[u8], now_secs: u32) {
        let Some((socket, names)) = &self.host else { return };
        let here = self.here(now_secs);
        if let Said::Answer(bytes) = names.take(question, None, &here) {
            self.desk.counters.dns_answered.add(1);
            // A program that gets no answer asks again.
            let _ = sendto(socket, &bytes, SendFlags::DONTWAIT, &from);
        }
    }

    /// Saves leases that have changed.
    fn save(&mut self, now_secs: u32) {
        let (shown, counters) = (&self.shown, &self.desk.counters);
        if let Some((dhcp, saved)) = &mut self.dhcp {
            let changed = std::mem::take(&mut dhcp.changed);
            saved.note((dhcp.leases(), changed), &shown.v4, counters, now_secs);
        }
        if let Some((dhcp6, saved)) = &mut self.dhcp6 {
            let changed = std::mem::take(&mut dhcp6.changed);
            saved.note((dhcp6.leases(), changed), &shown.v6, counters, now_secs);
        }
    }

    /// Guests, by name and by address.
    fn here(&self, now_secs: u32) -> Here<'_> {
        let (dhcp, dhcp6) = (self.dhcp.as_ref(), self.dhcp6.as_ref());
        Here {
            desk: &self.desk,
            dhcp: dhcp.map(|it| &it.0),
            dhcp6: dhcp6.map(|it| &it.0),
            now_secs,
        }
    }
}

fn count(counters: &GatewayCounters, done: Done) {
    let counter = match done {
        Done::Offered => &counters.offered,
        Done::Given => &counters.given,
        Done::Informed => &counters.informed,
        Done::Refused => &counters.refused,
        Done::Released => &counters.released,
        Done::Declined => &counters.declined,
        Done::NoAddress => &counters.no_address,
        Done::Ignored => &counters.ignored,
    };
    counter.add(1);
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
    dhcp6: Option<&'h Dhcp6>,
    now_secs: u32,
}

impl Directory for Here<'_> {
    fn addresses_of(&self, vif: &str) -> Option<Vec<IpAddr>> {
        let guest = self.desk.guest(|guest| guest.vif.eq_ignore_ascii_case(vif))?;
        let given = self.dhcp.map(|dhcp| dhcp.addresses_of(&guest.vif, self.now_secs));
        let mut all: Vec<IpAddr> = given.into_iter().flatten().map(IpAddr::from).collect();
        let given = self.dhcp6.map(|dhcp6| dhcp6.addresses_of(&guest.vif, self.now_secs));
        all.extend(given.into_iter().flatten().map(IpAddr::from));
        all.extend(guest.ips.iter().filter(|ip| !all.contains(ip)).copied().collect::<Vec<_>>());
        Some(all)
    }

    fn vif_of(&self, address: IpAddr) -> Option<String> {
        let given = match address {
            IpAddr::V4(address) => self.dhcp.and_then(|dhcp| dhcp.vif_of(address, self.now_secs)),
            IpAddr::V6(address) => self.dhcp6.and_then(|it| it.vif_of(address, self.now_secs)),
        };
        let configured = || self.desk.guest(|guest| guest.ips.contains(&address));
        given.map(str::to_owned).or_else(|| configured().map(|guest| guest.vif))
    }
}
