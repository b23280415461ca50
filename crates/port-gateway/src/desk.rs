//! Frames that wait to be looked at, and answers that wait to be sent: between workers and the thread that answers.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use rustix::event::{EventfdFlags, eventfd};
use weir_engine::stats::Counter;
use weir_engine::{Side, clock, lock};
use weir_fabric::{Fdb, PortId, Vid};
use weir_guestmem::{Batch, HostBuffer};
use weir_limits::{OWN_ANSWERS_MAX, OWN_FRAMES_BURST, OWN_FRAMES_PER_SEC, OWN_FRAMES_WAITING_MAX};
use weir_policy::policing::Gcra;
use weir_policy::steering::Steering;
use weir_port_tap::FrameDevice;
use weir_wire::{Ethernet, OffloadCaps, VnetHdr};

use crate::port::Guest;

/// What weir has answered in a network, and what it has not.
#[derive(Debug, Default)]
pub struct GatewayCounters {
    /// Questions for weir's addresses (ARP, neighbour discovery).
    pub neighbours: Counter,
    /// Echo requests.
    pub echoes: Counter,
    /// Addresses that were offered.
    pub offered: Counter,
    /// Addresses that were given, and times that were made longer.
    pub given: Counter,
    /// Settings for clients that have an address.
    pub informed: Counter,
    /// Requests for addresses that the client may not have.
    pub refused: Counter,
    /// Addresses that were given back.
    pub released: Counter,
    /// Addresses that a client has found in use.
    pub declined: Counter,
    /// Questions of clients for which there is no address.
    pub no_address: Counter,
    /// Frames of a guest that sends too many for weir.
    pub over_rate: Counter,
    /// Frames for weir that say nothing to it.
    pub ignored: Counter,
    /// Answers whose receiver was not there any more.
    pub unsent: Counter,
}

impl GatewayCounters {
    /// Each by its name.
    pub fn all(&self) -> [(&'static str, u64); 12] {
        [
            ("neighbours", &self.neighbours),
            ("echoes", &self.echoes),
            ("dhcp_offered", &self.offered),
            ("dhcp_given", &self.given),
            ("dhcp_informed", &self.informed),
            ("dhcp_refused", &self.refused),
            ("dhcp_released", &self.released),
            ("dhcp_declined", &self.declined),
            ("dhcp_no_address", &self.no_address),
            ("over_rate", &self.over_rate),
            ("ignored", &self.ignored),
            ("unsent", &self.unsent),
        ]
        .map(|(name, counter)| (name, counter.get()))
    }
}

/// A guest's port that is served, and how much of it.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) guest: Guest,
    rate: Gcra,
}

/// A frame for weir.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// The port that its sender is behind.
    pub(crate) from: PortId,
    pub(crate) served: Arc<Served>,
    pub(crate) wanted: crate::answer::Wanted,
    pub(crate) frame: Vec<u8>,
}

#[derive(Debug, Default)]
struct Waiting {
    all: VecDeque<Arrival>,
    /// How many of each port.
    of: HashMap<PortId, usize>,
    /// Guests have come or gone, or the thread is to end.
    rings: bool,
    ends: bool,
}

/// Says to workers that there are answers.
#[derive(Debug)]
pub struct Bell {
    pub(crate) rung: OwnedFd,
    pub(crate) heard: OwnedFd,
}

impl Bell {
    /// One that has not rung yet.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn new() -> io::Result<Self> {
        let rung = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { heard: rung.try_clone()?, rung })
    }
}

/// What the thread is woken for.
#[derive(Debug)]
pub(crate) enum Woken {
    /// Frames to look at, and whether the guests have changed.
    Work(Vec<Arrival>, bool),
    /// The port is gone.
    End,
}

/// See the module.
pub(crate) struct Desk {
    pub(crate) vid: Vid,
    pub(crate) fdb: Arc<Fdb>,
    pub(crate) counters: GatewayCounters,
    guests: RwLock<HashMap<PortId, Arc<Served>>>,
    waiting: Mutex<Waiting>,
    woken: Condvar,
    /// Answers, each for the port that its receiver is to be behind.
    answers: Mutex<VecDeque<(PortId, Vec<u8>)>>,
    /// Rings when there is an answer.
    bell: OwnedFd,
}

impl Desk {
    pub(crate) fn new(vid: Vid, fdb: Arc<Fdb>, bell: OwnedFd) -> Self {
        let (counters, guests, waiting) = Default::default();
        let (woken, answers) = Default::default();
        Self { vid, fdb, counters, guests, waiting, woken, answers, bell }
    }

    /// The guest behind a port from now on; `None` without.
    pub(crate) fn set_guest(&self, port: PortId, guest: Option<Guest>) {
        let mut guests = self.guests.write().unwrap_or_else(PoisonError::into_inner);
        let changed = match guest {
            Some(guest) if guests.get(&port).is_some_and(|served| served.guest == guest) => false,
            Some(guest) => {
                let rate = Gcra::new(OWN_FRAMES_PER_SEC, OWN_FRAMES_BURST);
                guests.insert(port, Arc::new(Served { guest, rate }));
                true
            }
            None => guests.remove(&port).is_some(),
        };
        drop(guests);
        if changed {
            self.waiting().rings = true;
            self.woken.notify_one();
        }
    }

    /// All guests.
    pub(crate) fn guests(&self) -> Vec<Guest> {
        let guests = self.guests.read().unwrap_or_else(PoisonError::into_inner);
        guests.values().map(|served| served.guest.clone()).collect()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }

    /// Takes a frame for weir that came from `from`, if that is a guest's port that may send one.
    pub(crate) fn arrive(
        &self,
        from: PortId,
        wanted: crate::answer::Wanted,
        copy: impl FnOnce() -> Option<Vec<u8>>,
    ) {
        let served = self.guests.read().unwrap_or_else(PoisonError::into_inner).get(&from).cloned();
        // An uplink's stations have servers of their own.
        let Some(served) = served else { return };
        if !served.rate.pass_within_burst(clock::now_ns(), 1) {
            self.counters.over_rate.add(1);
            return;
        }
        let Some(frame) = copy() else {
            self.counters.ignored.add(1);
            return;
        };
        let mut waiting = self.waiting();
        let of = waiting.of.entry(from).or_default();
        if *of >= OWN_FRAMES_WAITING_MAX {
            drop(waiting);
            self.counters.over_rate.add(1);
            return;
        }
        *of += 1;
        waiting.all.push_back(Arrival { from, served, wanted, frame });
        drop(waiting);
        self.woken.notify_one();
    }

    /// Waits for frames to look at.
    pub(crate) fn wait(&self) -> Woken {
        let idle =
            |waiting: &mut Waiting| waiting.all.is_empty() && !waiting.rings && !waiting.ends;
        let waiting = self.woken.wait_while(self.waiting(), idle);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        if waiting.ends {
            return Woken::End;
        }
        waiting.of.clear();
        let changed = std::mem::take(&mut waiting.rings);
        Woken::Work(waiting.all.drain(..).collect(), changed)
    }

    /// Has the thread end.
    pub(crate) fn end(&self) {
        self.waiting().ends = true;
        self.woken.notify_one();
    }

    /// Has these frames sent, each to the port that its receiver is behind.
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
            // Each write is an event, and it takes centuries to fill the counter.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// The next answer whose receiver is where it was.
    fn next_answer(&self) -> Option<Vec<u8>> {
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

/// What the port's frames come from.
pub(crate) struct AnswerDevice {
    pub(crate) name: String,
    pub(crate) desk: Arc<Desk>,
    pub(crate) queues: [OwnedFd; 1],
    pub(crate) steering: Steering,
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
        OffloadCaps::NONE
    }

    fn vnet_len(&self) -> usize {
        VnetHdr::LEN
    }

    fn receive(
        &self,
        _queue: BorrowedFd<'_>,
        buffers: &mut dyn Iterator<Item = &HostBuffer>,
        places: &mut Vec<Range<usize>>,
    ) -> io::Result<usize> {
        let buffer = buffers.next().ok_or(io::ErrorKind::InvalidInput)?;
        let frame = self.desk.next_answer().ok_or(io::ErrorKind::WouldBlock)?;
        let len = VnetHdr::LEN + frame.len();
        let place = buffer.slice(0, len).ok_or(io::ErrorKind::InvalidInput)?;
        place.write(&[0; VnetHdr::LEN]);
        place.skip(VnetHdr::LEN).write(&frame);
        places.push(0..len);
        Ok(1)
    }

    /// Frames for the port are looked at before they would come here.
    fn send(
        &self,
        _queue: BorrowedFd<'_>,
        _batch: &mut Batch<'_, '_>,
        _lost: &mut dyn FnMut(Range<usize>, &io::Error),
    ) {
    }

    fn is_gone(&self, _queue: BorrowedFd<'_>, _side: Side, _error: &io::Error) -> bool {
        false
    }
}
