//! The queues between the workers and the thread that answers: frames for the thread, and its answers.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use weir_engine::stats::Counter;
use weir_engine::{Side, clock, lock};
use weir_fabric::{Fdb, FdbEntry, PortId, Snooping, Vid};
use weir_guestmem::{Batch, HostBuffer};
use weir_limits::{
    DNS_BURST, DNS_PER_SEC, DNS_WAITING_MAX, OWN_ANSWERS_MAX, OWN_FRAMES_BURST, OWN_FRAMES_PER_SEC,
    OWN_FRAMES_WAITING_MAX,
};
use weir_policy::policing::Gcra;
use weir_policy::steering::Steering;
use weir_port_tap::{FrameDevice, Tap};
use weir_wire::{Ethernet, Mac, Neighbour, OffloadCaps, VnetHdr};

use crate::answer::Wanted;
use crate::port::Guest;
use crate::stream::StreamId;

/// Counters of weir's answers in a network, and of the frames that it did not answer.
#[derive(Debug, Default)]
pub struct GatewayCounters {
    /// Answers for weir's addresses (ARP, neighbour discovery).
    pub neighbours: Counter,
    /// Router advertisements, solicited or not.
    pub advertised: Counter,
    /// Echo replies.
    pub echoes: Counter,
    /// Addresses that were offered.
    pub offered: Counter,
    /// Addresses that were given, and leases that were extended.
    pub given: Counter,
    /// Answers with settings for clients that have an address.
    pub informed: Counter,
    /// Requests for addresses that the client must not have.
    pub refused: Counter,
    /// Addresses that were given back.
    pub released: Counter,
    /// Addresses that a client has found in use.
    pub declined: Counter,
    /// DISCOVER messages of clients for which there is no address.
    pub no_address: Counter,
    /// DNS questions that weir has answered itself.
    pub dns_answered: Counter,
    /// DNS questions that the host's resolver has answered.
    pub dns_forwarded: Counter,
    /// DNS questions that no resolver has answered in time.
    pub dns_failed: Counter,
    /// Attempts to save leases that have failed.
    pub unsaved: Counter,
    /// Failures to save leases that a later save has made good.
    pub mended: Counter,
    /// Frames for weir above the guest's rate.
    pub over_rate: Counter,
    /// Frames for weir that it does not understand.
    pub ignored: Counter,
    /// Answers whose receiver was no longer behind its port, or that found the queue full.
    pub unsent: Counter,
}

impl GatewayCounters {
    /// All counters, each with its name.
    pub fn all(&self) -> [(&'static str, u64); 18] {
        [
            ("neighbours", &self.neighbours),
            ("echoes", &self.echoes),
            ("advertised", &self.advertised),
            ("dhcp_offered", &self.offered),
            ("dhcp_given", &self.given),
            ("dhcp_informed", &self.informed),
            ("dhcp_refused", &self.refused),
            ("dhcp_released", &self.released),
            ("dhcp_declined", &self.declined),
            ("dhcp_no_address", &self.no_address),
            ("dns_answered", &self.dns_answered),
            ("dns_forwarded", &self.dns_forwarded),
            ("dns_failed", &self.dns_failed),
            ("leases_unsaved", &self.unsaved),
            ("leases_saved_late", &self.mended),
            ("over_rate", &self.over_rate),
            ("ignored", &self.ignored),
            ("unsent", &self.unsent),
        ]
        .map(|(name, counter)| (name, counter.get()))
    }
}

/// A guest's port that weir serves, and its rates.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) guest: Guest,
    rate: Gcra,
    /// The rate of DNS questions is separate, so that a guest with many of them can still renew its address.
    names_rate: Gcra,
}

/// The last request of a guest for an IPv4 neighbour other than weir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The address that the guest uses, if the request has one.
    pub from: Option<IpAddr>,
    /// The address that the guest asks for.
    pub target: IpAddr,
    /// The number of seconds in which the guest has asked for it, without a pause of more than five seconds.
    pub seconds: u32,
    /// The time of the request, in seconds of weir's clock.
    pub at_secs: u32,
}

/// A guest that gets no answer asks each second.
const ASKS_ON_SECS: u32 = 5;
/// The age (s) from which a request no longer counts.
const ASKED_SECS: u32 = 30;

/// A frame for weir.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// The port that its sender is behind.
    pub(crate) from: PortId,
    pub(crate) served: Arc<Served>,
    pub(crate) wanted: Wanted,
    pub(crate) frame: Vec<u8>,
}

#[derive(Debug, Default)]
struct Waiting {
    all: VecDeque<Arrival>,
    /// The resolver's answers for connections. There are no more of them than questions are pending.
    told: Vec<(StreamId, Vec<u8>)>,
    /// The host's own questions, each with its sender.
    host: Vec<(SocketAddr, Vec<u8>)>,
    /// The number of frames of each port, with those of DNS (`true`) counted separately.
    of: HashMap<(PortId, bool), usize>,
    /// `rings`: guests were added or removed. `ends`: the thread has to end.
    rings: bool,
    ends: bool,
}

/// Notifies a worker of answers.
#[derive(Debug)]
pub struct Bell {
    pub(crate) rung: OwnedFd,
    pub(crate) heard: OwnedFd,
}

impl Bell {
    /// Creates a bell that has not rung yet.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn new() -> io::Result<Self> {
        let rung = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { heard: rung.try_clone()?, rung })
    }
}

/// The reason why the thread wakes.
#[derive(Debug)]
pub(crate) enum Woken {
    /// Frames to answer, the resolver's answers for connections, and `true` if guests were added or removed.
    Work(Vec<Arrival>, Vec<(StreamId, Vec<u8>)>, bool),
    /// The thread has to end.
    End,
}

/// The queues of one port.
pub(crate) struct Desk {
    pub(crate) vid: Vid,
    pub(crate) fdb: Arc<Fdb>,
    /// Multicast snooping of the network, with the number of weir's own port.
    pub(crate) snooping: Option<(Arc<Snooping>, PortId)>,
    pub(crate) counters: GatewayCounters,
    guests: RwLock<HashMap<PortId, Arc<Served>>>,
    /// The guests' last requests for other neighbours.
    asked: Mutex<HashMap<PortId, Asked>>,
    waiting: Mutex<Waiting>,
    woken: Condvar,
    /// Answers, each with the port that its receiver must be behind.
    answers: Mutex<VecDeque<(PortId, Vec<u8>)>>,
    /// Rings when there is an answer.
    bell: OwnedFd,
}

impl Desk {
    pub(crate) fn new(
        vid: Vid,
        fdb: Arc<Fdb>,
        snooping: Option<(Arc<Snooping>, PortId)>,
        bell: OwnedFd,
    ) -> Self {
        let (counters, guests, waiting) = Default::default();
        let (asked, woken, answers) = Default::default();
        Self { vid, fdb, snooping, counters, guests, asked, waiting, woken, answers, bell }
    }

    /// Sets the guest behind a port; `None` removes it.
    pub(crate) fn set_guest(&self, port: PortId, guest: Option<Guest>) {
        let mut guests = self.guests.write().unwrap_or_else(PoisonError::into_inner);
        let changed = match guest {
            Some(guest) if guests.get(&port).is_some_and(|served| served.guest == guest) => false,
            Some(guest) => {
                let rate = Gcra::new(OWN_FRAMES_PER_SEC, OWN_FRAMES_BURST);
                let names_rate = Gcra::new(DNS_PER_SEC, DNS_BURST);
                guests.insert(port, Arc::new(Served { guest, rate, names_rate }));
                true
            }
            None => {
                lock(&self.asked).remove(&port);
                guests.remove(&port).is_some()
            }
        };
        drop(guests);
        if changed {
            self.waiting().rings = true;
            self.woken.notify_one();
        }
    }

    /// The guests' stations, each with its port and its guest.
    pub(crate) fn stations(&self, now_secs: u32) -> Vec<(PortId, Mac, Arc<Served>)> {
        // The whole table is read before the lock is taken, which frames of guests wait for.
        let all = self.fdb.entries(now_secs).into_iter().filter(|entry| entry.vid == self.vid);
        let guests = self.guests.read().unwrap_or_else(PoisonError::into_inner);
        let of_guests = |entry: FdbEntry| {
            let served = Arc::clone(guests.get(&entry.port)?);
            Some((entry.port, entry.mac, served))
        };
        all.filter_map(of_guests).collect()
    }

    /// A guest for which `is_it` is true, if there is one.
    pub(crate) fn guest(&self, is_it: impl Fn(&Guest) -> bool) -> Option<Guest> {
        let guests = self.guests.read().unwrap_or_else(PoisonError::into_inner);
        guests.values().find(|served| is_it(&served.guest)).map(|served| served.guest.clone())
    }

    /// All guests.
    pub(crate) fn guests(&self) -> Vec<Guest> {
        let guests = self.guests.read().unwrap_or_else(PoisonError::into_inner);
        guests.values().map(|served| served.guest.clone()).collect()
    }

    /// Remembers a guest's request for another neighbour. Requests within one second count once.
    pub(crate) fn hear(&self, head: &[u8], now_secs: u32) {
        let Some(Neighbour { mac, claims: from, asks: Some(target @ IpAddr::V4(_)) }) =
            Neighbour::read(head)
        else {
            return;
        };
        let Some(port) = self.fdb.lookup(self.vid, mac, now_secs) else { return };
        if !self.guests.read().unwrap_or_else(PoisonError::into_inner).contains_key(&port) {
            return;
        }
        // A worker does not wait for the lock. The guest repeats its request.
        let Ok(mut all) = self.asked.try_lock() else { return };
        let before = all.get(&port).filter(|it| {
            (it.from, it.target) == (from, target)
                && now_secs.saturating_sub(it.at_secs) <= ASKS_ON_SECS
        });
        let seconds = before.map_or(1, |it| it.seconds + u32::from(it.at_secs != now_secs));
        all.insert(port, Asked { from, target, seconds, at_secs: now_secs });
    }

    /// The last request of the guest behind `port`, and another guest that uses its address.
    pub(crate) fn asked(&self, port: PortId, now_secs: u32) -> Option<(Asked, Option<String>)> {
        let all = lock(&self.asked).clone();
        let is_new = |it: &&Asked| now_secs.saturating_sub(it.at_secs) <= ASKED_SECS;
        let of = *all.get(&port).filter(is_new)?;
        let same = |(other, it): &(&PortId, &Asked)| {
            **other != port && is_new(it) && it.from == of.from && of.from.is_some()
        };
        let other = all.iter().find(same).map(|(other, _)| *other);
        let guests = self.guests.read().unwrap_or_else(PoisonError::into_inner);
        Some((of, other.and_then(|it| Some(guests.get(&it)?.guest.vif.clone()))))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }

    /// Takes a frame for weir from a guest's port, within the guest's rate.
    pub(crate) fn arrive(
        &self,
        from: PortId,
        wanted: Wanted,
        copy: impl FnOnce() -> Option<Vec<u8>>,
    ) {
        let served = self.guests.read().unwrap_or_else(PoisonError::into_inner).get(&from).cloned();
        // Stations behind an uplink have their own servers.
        let Some(served) = served else { return };
        let is_name = matches!(wanted, Wanted::Names(_) | Wanted::Stream(_));
        let (rate, waiting_max) = match is_name {
            true => (&served.names_rate, DNS_WAITING_MAX),
            false => (&served.rate, OWN_FRAMES_WAITING_MAX),
        };
        if !rate.pass_within_burst(clock::now_ns(), 1) {
            self.counters.over_rate.add(1);
            return;
        }
        let Some(frame) = copy() else {
            self.counters.ignored.add(1);
            return;
        };
        let mut waiting = self.waiting();
        let of = waiting.of.entry((from, is_name)).or_default();
        if *of >= waiting_max {
            drop(waiting);
            self.counters.over_rate.add(1);
            return;
        }
        *of += 1;
        waiting.all.push_back(Arrival { from, served, wanted, frame });
        drop(waiting);
        self.woken.notify_one();
    }

    /// Waits for frames or a change of the guests, at most until `end`.
    pub(crate) fn wait(&self, end: Option<Instant>) -> Woken {
        let idle = |waiting: &mut Waiting| {
            let is_empty = waiting.all.is_empty() && waiting.told.is_empty();
            is_empty && waiting.host.is_empty() && !waiting.rings && !waiting.ends
        };
        let waiting = self.waiting();
        let mut waiting = match end {
            None => self.woken.wait_while(waiting, idle).unwrap_or_else(PoisonError::into_inner),
            Some(end) => {
                let left = end.saturating_duration_since(Instant::now());
                let waited = self.woken.wait_timeout_while(waiting, left, idle);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        if waiting.ends {
            return Woken::End;
        }
        waiting.of.clear();
        let changed = std::mem::take(&mut waiting.rings);
        let told = std::mem::take(&mut waiting.told);
        Woken::Work(waiting.all.drain(..).collect(), told, changed)
    }

    /// Leaves the resolver's answer for a connection to the thread.
    pub(crate) fn tell(&self, stream: StreamId, answer: Vec<u8>) {
        self.waiting().told.push((stream, answer));
        self.woken.notify_one();
    }

    /// Leaves a question of the host's own to the thread. A program that gets no answer asks again.
    pub(crate) fn host_asks(&self, from: SocketAddr, question: Vec<u8>) {
        let mut waiting = self.waiting();
        if waiting.host.len() < DNS_WAITING_MAX {
            waiting.host.push((from, question));
        }
        drop(waiting);
        self.woken.notify_one();
    }

    /// The host's questions since the last call.
    pub(crate) fn host_asked(&self) -> Vec<(SocketAddr, Vec<u8>)> {
        std::mem::take(&mut self.waiting().host)
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.waiting().ends = true;
        self.woken.notify_one();
    }

    /// Queues answers, each with the port that its receiver must be behind.
    pub(crate) fn send(&self, all: impl IntoIterator<Item = (PortId, Vec<u8>)>) {
        let mut answers = lock(&self.answers);
        let was_empty = answers.is_empty();
        for answer in all {
            match answers.len() < OWN_ANSWERS_MAX {
                true => answers.push_back(answer),
                false => self.counters.unsent.add(1),
            }
        }
        let rings = was_empty && !answers.is_empty();
        drop(answers);
        if rings {
            // A write adds 1 to the counter. The counter would overflow only after centuries.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// The number of answers that wait to be sent.
    #[cfg(feature = "testing")]
    pub(crate) fn unsent(&self) -> usize {
        lock(&self.answers).len()
    }

    /// The next answer whose receiver is still behind its port.
    pub(crate) fn next_answer(&self) -> Option<Vec<u8>> {
        let mut answers = lock(&self.answers);
        let now_secs = clock::secs(clock::now_ns());
        loop {
            let (port, frame) = answers.pop_front()?;
            let dst = Ethernet::parse(&frame).ok().map(|ethernet| ethernet.dst);
            let is_there =
                dst.is_some_and(|dst| self.fdb.lookup(self.vid, dst, now_secs) == Some(port));
            if is_there {
                return Some(frame);
            }
            self.counters.unsent.add(1);
        }
    }
}

/// The host as a station beside weir: the TAP device that has the host's address.
pub struct HostSide {
    tap: Tap,
    /// A duplicate of the TAP's queue, for the port's queues.
    queue: OwnedFd,
}

impl HostSide {
    /// Takes a TAP with one queue.
    ///
    /// # Errors
    /// There is no descriptor left, or the TAP has another number of queues.
    pub fn new(tap: Tap) -> io::Result<Self> {
        let [queue] = tap.queues() else { return Err(io::ErrorKind::InvalidInput.into()) };
        Ok(Self { queue: queue.try_clone()?, tap })
    }
}

/// The device of the port: the source of its answers, and the way to the host.
pub(crate) struct AnswerDevice {
    name: String,
    desk: Arc<Desk>,
    /// The host's queue, if there is a host, and the queue of answers, which is last.
    queues: Vec<OwnedFd>,
    steering: Steering,
    host: Option<Tap>,
}

impl AnswerDevice {
    pub(crate) fn new(
        name: String,
        desk: Arc<Desk>,
        bell: OwnedFd,
        host: Option<HostSide>,
    ) -> Self {
        let (host, queue) = host.map(|HostSide { tap, queue }| (tap, queue)).unzip();
        let queues: Vec<_> = queue.into_iter().chain([bell]).collect();
        let steering = Steering::new(1).expect("one queue is few");
        Self { name, desk, queues, steering, host }
    }

    /// The host, if `queue` is the host's.
    fn host(&self, queue: BorrowedFd<'_>) -> Option<&Tap> {
        let of_answers = self.queues.last().is_some_and(|it| it.as_raw_fd() == queue.as_raw_fd());
        self.host.as_ref().filter(|_| !of_answers)
    }
}

impl FrameDevice for AnswerDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn queues(&self) -> &[OwnedFd] {
        &self.queues
    }

    fn steering(&self) -> &Steering {
        &self.steering
    }

    fn offloads(&self) -> OffloadCaps {
        self.host.as_ref().map_or(OffloadCaps::NONE, FrameDevice::offloads)
    }

    fn vnet_len(&self) -> usize {
        VnetHdr::LEN
    }

    fn receive(
        &self,
        queue: BorrowedFd<'_>,
        buffers: &mut dyn Iterator<Item = &HostBuffer>,
        places: &mut Vec<Range<usize>>,
    ) -> io::Result<usize> {
        if let Some(host) = self.host(queue) {
            return host.receive(queue, buffers, places);
        }
        let buffer = buffers.next().ok_or(io::ErrorKind::InvalidInput)?;
        let frame = self.desk.next_answer().ok_or(io::ErrorKind::WouldBlock)?;
        let len = VnetHdr::LEN + frame.len();
        let place = buffer.slice(0, len).ok_or(io::ErrorKind::InvalidInput)?;
        place.write(&[0; VnetHdr::LEN]);
        place.skip(VnetHdr::LEN).write(&frame);
        places.push(0..len);
        Ok(1)
    }

    /// Sends to the host only: frames for weir do not reach the device.
    fn send(
        &self,
        queue: BorrowedFd<'_>,
        batch: &mut Batch<'_, '_>,
        lost: &mut dyn FnMut(Range<usize>, &io::Error),
    ) {
        if let Some(host) = self.host(queue) {
            host.send(queue, batch, lost);
        }
    }

    fn is_gone(&self, queue: BorrowedFd<'_>, side: Side, error: &io::Error) -> bool {
        self.host(queue).is_some_and(|host| host.is_gone(queue, side, error))
    }
}
