//! A session that outlives weir. Each request is peeked at, handled, and stored as handled; then its reply goes out,
//! and only then it is taken from the socket. The next weir finds it either new or handled.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};
use weir_calls::Kind;
use weir_engine::guest::GuestPort;
use weir_engine::{Engine, lock};
use weir_guestmem::RegionSpec;
use weir_limits::KEPT_DOUBT_NS;
use weir_ring::{Addresses, ring_size};
use weir_sandbox::descriptors;
use weir_vhost_user::{
    DirtyLog, FrontMessage, Glimpse, HEADER_LEN, Header, Inflight, LogBase, Payload, Peek, Receipt,
    Request, reply_bytes,
};

use super::{Reply, Session, Vring, connection, refuse_unoffered, spec};
use crate::error::{Refusal, StopReason};
use crate::features::{Features, OFFERED_EVER, PROTOCOL_OFFERED_EVER};
use crate::keep::{
    InflightState, Keep, LeftBehind, LogState, RegionState, State, UnderWay, VringState,
};
use crate::notify::Notifier;
use crate::port::VhostPort;
use crate::records::Region;

/// The time that a front end has to continue after a reply that may not have reached it.
const DOUBT: Duration = Duration::from_nanos(KEPT_DOUBT_NS);

/// Descriptors of one ring that are kept.
#[derive(Debug, Clone, Copy, Default)]
struct RingFiles {
    kick: Option<u32>,
    call: Option<u32>,
    err: Option<u32>,
}

/// The kept part of a session.
#[derive(Debug)]
pub(super) struct Kept {
    connection: u32,
    requests: Option<u32>,
    inflight: Option<InflightState>,
    log: Option<LogState>,
    log_call: Option<u32>,
    regions: Vec<(RegionSpec, u32)>,
    rings: Vec<RingFiles>,
    mtu: Option<u16>,
    /// The state that is stored.
    state: State,
    /// Numbers that are not needed any more once the next state is stored.
    obsolete: Vec<u32>,
    /// The step that follows once the reply is out.
    due: Option<Due>,
    /// A request that another weir had handled, whose reply may be missing.
    doubt: Option<UnderWay>,
    /// The number of times that weir has ended with the next request.
    tries: u32,
}

#[derive(Debug)]
enum Due {
    /// Take the request from the socket; if the request stopped a ring, that ring's record is not needed any more.
    Consume(Receipt),
    /// Store a request that came in pieces.
    Store,
}

/// The descriptors that a request brings, which are kept if the request succeeds.
enum Brought {
    Nothing,
    Regions { replaces: bool, files: Vec<(RegionSpec, OwnedFd)> },
    Kick(usize, OwnedFd),
    Call(usize, Option<OwnedFd>),
    Err(usize, Option<OwnedFd>),
    Requests(OwnedFd),
    Inflight(Inflight, OwnedFd),
    Log(DirtyLog, OwnedFd),
    LogCall(OwnedFd),
    Mtu(u64),
}

impl Brought {
    /// The descriptors that `message` brings; `None` if one cannot be kept, because closing it could take as long as
    /// its front end likes.
    fn by(message: &FrontMessage) -> Option<Self> {
        let copy = |fd: &OwnedFd| descriptors::for_guest(fd.try_clone().ok()?).ok();
        let of_kind = |fd: &OwnedFd, kind: Kind| {
            Kind::of(fd.as_fd()).is_ok_and(|found| found == kind).then(|| copy(fd)).flatten()
        };
        let event = |fd: &Option<OwnedFd>| match fd {
            Some(fd) => of_kind(fd, Kind::Eventfd).map(Some),
            None => Some(None),
        };
        Some(match message {
            FrontMessage::SetMemTable(regions) => {
                let files = regions.iter().map(|(region, fd)| Some((spec(region), copy(fd)?)));
                Self::Regions { replaces: true, files: files.collect::<Option<_>>()? }
            }
            FrontMessage::AddMemReg { region, fd } => {
                Self::Regions { replaces: false, files: vec![(spec(region), copy(fd)?)] }
            }
            FrontMessage::SetVringKick { index, fd: Some(fd) } => {
                Self::Kick(*index as usize, of_kind(fd, Kind::Eventfd)?)
            }
            FrontMessage::SetVringCall { index, fd } => Self::Call(*index as usize, event(fd)?),
            FrontMessage::SetVringErr { index, fd } => Self::Err(*index as usize, event(fd)?),
            FrontMessage::SetBackendReqFd(fd) => Self::Requests(of_kind(fd, Kind::UnixStream)?),
            FrontMessage::SetInflightFd { inflight, fd } => Self::Inflight(*inflight, copy(fd)?),
            FrontMessage::NetSetMtu(mtu) => Self::Mtu(*mtu),
            FrontMessage::SetLogBase(LogBase::Shared { log, fd: Some(fd) }) => {
                Self::Log(*log, copy(fd)?)
            }
            FrontMessage::SetLogFd(fd) => Self::LogCall(of_kind(fd, Kind::Eventfd)?),
            _ => Self::Nothing,
        })
    }
}

impl Kept {
    fn new(connection: u32, rings: usize) -> Self {
        Self {
            connection,
            requests: None,
            inflight: None,
            log: None,
            log_call: None,
            regions: Vec::new(),
            rings: vec![RingFiles::default(); rings],
            mtu: None,
            state: State::default(),
            obsolete: Vec::new(),
            due: None,
            doubt: None,
            tries: 0,
        }
    }

    /// True if no step of an earlier request is left.
    pub(super) fn is_settled(&self) -> bool {
        self.due.is_none() && self.doubt.is_none()
    }

    /// All numbers under which the keeper holds something of the session.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let rings = self.rings.iter().flat_map(|ring| [ring.kick, ring.call, ring.err]).flatten();
        let inflight = self.inflight.map(|inflight| inflight.file);
        let regions = self.regions.iter().map(|(_, file)| *file);
        let log = self.log.map(|log| log.file);
        let own = [Some(self.connection), self.requests, inflight, log, self.log_call];
        let own = own.into_iter().flatten();
        own.chain(rings).chain(regions).chain(self.obsolete.iter().copied())
    }

    /// Puts `number` into `place`; the number that was there becomes obsolete.
    fn replace(obsolete: &mut Vec<u32>, place: &mut Option<u32>, number: Option<u32>) {
        obsolete.extend(std::mem::replace(place, number));
    }
}

impl Session {
    /// Makes the session outlive weir from now on, if its interface has a place with the keeper. Its connection may
    /// already be at `place` there.
    pub(crate) fn kept(mut self, place: Option<u32>) -> Self {
        let port = Arc::clone(&self.port);
        let Some(keep) = port.keep() else { return self };
        let copied = || Some(keep.store(self.connection.as_fd().try_clone_to_owned().ok()?));
        let Some(connection) = place.or_else(copied) else { return self };
        keep.blob().set_tries(0);
        self.kept = Some(Kept::new(connection, self.vrings.len()));
        self.store_state(None);
        self
    }

    /// Resumes the session that another weir has left behind.
    ///
    /// # Errors
    /// A part of the session cannot be restored.
    pub(crate) fn take_up(
        stream: UnixStream,
        left: LeftBehind,
        port: Arc<VhostPort>,
        engine: Arc<Engine>,
        wake: Arc<OwnedFd>,
    ) -> Result<Self, Refusal> {
        let LeftBehind { state, mut files, under_way } = left;
        let mut session = Self::new(connection(stream), port, engine, wake);
        let port = Arc::clone(&session.port);
        let Some(keep) = port.keep() else { return Err(Refusal::NotKept("its place")) };
        let mut kept = Kept::new(state.connection, state.vrings.len());
        kept.tries = keep.blob().tries();
        // `kept` is set first: if the restoring fails, everything that was kept is removed with the session.
        kept.obsolete = files.keys().copied().collect();
        session.kept = Some(kept);
        session.restore(&state, &mut |number| files.remove(&number)?.try_clone().ok())?;
        if let Some(kept) = &mut session.kept {
            kept.doubt = under_way;
            kept.state = state;
            let all = std::mem::take(&mut kept.obsolete);
            let used: BTreeSet<_> = kept.numbers().collect();
            all.into_iter().filter(|number| !used.contains(number)).for_each(|n| keep.remove(n));
        }
        Ok(session)
    }

    /// Restores everything in `state`, with its descriptors by `file`.
    fn restore(
        &mut self,
        state: &State,
        file: &mut dyn FnMut(u32) -> Option<OwnedFd>,
    ) -> Result<(), Refusal> {
        let rings = state.vrings.len();
        if rings != 2 * state.queue_pairs || state.queue_pairs > self.port.interface().queue_pairs()
        {
            return Err(Refusal::NotKept("its queue pairs"));
        }
        self.vrings.resize_with(rings, Vring::default);
        lock(&self.port.shown).queue_pairs = Some(state.queue_pairs);
        refuse_unoffered(state.protocol_features, PROTOCOL_OFFERED_EVER)?;
        self.protocol_features = state.protocol_features;
        // These features were offered when the session began.
        refuse_unoffered(state.features, OFFERED_EVER)?;
        self.features = Features(state.features);
        self.status = state.status;
        self.owner_first = state.owner_first;
        self.foreign_endian = state.foreign_endian;
        let mut shown = lock(&self.port.shown);
        (shown.features, shown.halted) = (state.features, state.halted);
        shown.has_spoken = state.owner_first.is_some();
        if state.mtu.is_some() {
            shown.mtu = state.mtu;
        }
        drop(shown);
        self.restore_memory(state, file)?;
        self.restore_log(state, file)?;
        if let Some(number) = state.requests {
            self.requests = file(number);
        }
        self.find_iommu()?;
        if let Some(kept) = &mut self.kept {
            (kept.log, kept.log_call) = (state.log, state.log_call);
            (kept.mtu, kept.requests, kept.inflight) = (state.mtu, state.requests, state.inflight);
        }
        for (index, vring) in state.vrings.iter().enumerate() {
            self.restore_ring(index, vring, file)?;
        }
        if state.vrings.iter().any(|vring| vring.kick.is_some()) {
            // The guest's addresses are known before its first frame: until then nobody else may take one.
            let (fabric, id) = (self.engine.fabric(), self.port.id());
            let _ = fabric.set_active(id, true);
            fabric.recall(id, self.port.keep().map_or(&[], Keep::known));
        }
        for (index, vring) in state.vrings.iter().enumerate() {
            if let Some(kick) = vring.kick {
                self.restore_service(index, file(kick).ok_or(Refusal::NotKept("a kick"))?)?;
            }
        }
        self.stop_if_foreign();
        Ok(())
    }

    fn restore_memory(
        &mut self,
        state: &State,
        file: &mut dyn FnMut(u32) -> Option<OwnedFd>,
    ) -> Result<(), Refusal> {
        let gone = || Refusal::NotKept("its memory");
        let mut memory = self.memory.clone();
        for region in &state.regions {
            let fd = file(region.file).ok_or_else(gone)?;
            let RegionState { guest_address, size, user_address, mmap_offset, again, .. } = *region;
            let spec = RegionSpec { guest_address, size, user_address, mmap_offset };
            memory.add(spec, &File::from(fd))?;
            if again > 0 {
                self.repeated.push((spec, again));
            }
            if let Some(kept) = &mut self.kept {
                kept.regions.push((spec, region.file));
            }
        }
        self.use_memory(memory)?;
        if let Some(inflight) = &state.inflight {
            let fd = file(inflight.file).ok_or_else(gone)?;
            let told = inflight.told();
            self.inflight = Some(Region::over(&told, fd, self.vrings.len(), self.port.memory())?);
        }
        Ok(())
    }

    /// Restores the log of a guest that is being migrated: rings log to it from their start on.
    fn restore_log(
        &mut self,
        state: &State,
        file: &mut dyn FnMut(u32) -> Option<OwnedFd>,
    ) -> Result<(), Refusal> {
        let gone = || Refusal::NotKept("its dirty log");
        if let Some(LogState { size, offset, file: number }) = state.log {
            let fd = Some(file(number).ok_or_else(gone)?);
            let base = LogBase::Shared { log: DirtyLog { size, offset }, fd };
            self.migration.set_base(base, &self.memory, self.port.memory())?;
        }
        if let Some(number) = state.log_call {
            let call = Notifier::new(&self.port, 0, "log", file(number).ok_or_else(gone)?)?;
            self.migration.set_call(call);
        }
        Ok(())
    }

    fn restore_ring(
        &mut self,
        index: usize,
        state: &VringState,
        file: &mut dyn FnMut(u32) -> Option<OwnedFd>,
    ) -> Result<(), Refusal> {
        let size = state.size.map(|size| ring_size(size.into(), self.features.packed()));
        let addresses = state.addresses.map(|[descriptor, driver, device]| Addresses {
            descriptor,
            driver,
            device,
        });
        let VringState { base, log, said, stopped_at, enabled, kick, call, err, .. } = *state;
        self.vrings[index] = Vring {
            size: size.transpose()?,
            addresses,
            base,
            said,
            stopped_at,
            watch: None,
            call: false,
            err: false,
            enabled: false,
            log,
            place: None,
            late: None,
        };
        let number = index as u32; // below `VRINGS_MAX`
        let open = |fd: Option<u32>, file: &mut dyn FnMut(u32) -> Option<OwnedFd>| match fd {
            Some(fd) => file(fd).map(Some).ok_or(Refusal::NotKept("a call")),
            None => Ok(None),
        };
        let call_by = self.notifier("call", number, open(call, file)?)?;
        let err_by = self.notifier("err", number, open(err, file)?)?;
        (self.vrings[index].call, self.vrings[index].err) = (call_by.is_some(), err_by.is_some());
        self.port.with_queue(index, |queue| (queue.call, queue.err) = (call_by, err_by));
        self.enable(index, enabled);
        if let Some(ring) = self.kept.as_mut().and_then(|kept| kept.rings.get_mut(index)) {
            *ring = RingFiles { kick, call, err };
        }
        Ok(())
    }

    /// Puts a ring in service where the earlier weir left it, a packed one by its record.
    fn restore_service(&mut self, index: usize, kick: OwnedFd) -> Result<(), Refusal> {
        let vring = &self.vrings[index];
        let (Some(size), Some(_)) = (vring.size, vring.addresses) else {
            return Err(Refusal::NotKept("a ring's addresses"));
        };
        if self.features.packed() && self.record(index, size).is_none() {
            return Err(Refusal::NotKept("a packed ring's record"));
        }
        self.start_service(index as u32, kick)
    }

    /// Serves one request, if there is one.
    pub(super) fn serve_kept(&mut self) -> Result<(), StopReason> {
        if let Some(under_way) = self.kept.as_mut().and_then(|kept| kept.doubt.take()) {
            return self.settle_doubt(under_way);
        }
        if let Some(due) = self.kept.as_mut().and_then(|kept| kept.due.take()) {
            return self.settle(due);
        }
        if self.connection.is_mid_message() {
            return self.serve_piece();
        }
        match self.connection.peek()? {
            Peek::Nothing => Ok(()),
            Peek::Part => self.serve_piece(),
            Peek::Whole(glimpse) => self.serve_glimpse(glimpse),
        }
    }

    fn serve_glimpse(&mut self, glimpse: Glimpse) -> Result<(), StopReason> {
        let Glimpse { incoming, bytes, receipt } = glimpse;
        let Some(brought) = Brought::by(&incoming.message) else {
            self.keep_no_longer();
            return self.serve();
        };
        if let (Some(kept), Some(keep)) = (&self.kept, self.port.keep()) {
            keep.blob().set_tries(kept.tries + 1);
        }
        let reply = match self.reply_to(incoming) {
            Ok(reply) => reply,
            Err(reason) => {
                // Closing a socket with unread bytes would reset the connection.
                let _ = self.connection.consume(&receipt);
                return Err(reason);
            }
        };
        let under_way = UnderWay::new(bytes, reply.as_ref());
        self.note(brought, reply.as_ref());
        self.store_state(Some(&under_way));
        if let Some(reply) = reply {
            self.give(reply)?;
        }
        self.do_when_sent(Due::Consume(receipt))
    }

    /// Serves a request that comes in pieces. Until it is complete, the session would be lost with weir.
    fn serve_piece(&mut self) -> Result<(), StopReason> {
        if let Some(keep) = self.port.keep() {
            keep.blob().invalidate();
        }
        let Some(incoming) = self.connection.receive()? else { return Ok(()) };
        let Some(brought) = Brought::by(&incoming.message) else {
            self.keep_no_longer();
            return self.answer(incoming);
        };
        let reply = self.reply_to(incoming)?;
        self.note(brought, reply.as_ref());
        if let Some(reply) = reply {
            self.give(reply)?;
        }
        self.do_when_sent(Due::Store)
    }

    fn do_when_sent(&mut self, due: Due) -> Result<(), StopReason> {
        if !self.connection.wants_write() {
            return self.settle(due);
        }
        if let Some(kept) = &mut self.kept {
            kept.due = Some(due);
        }
        Ok(())
    }

    /// Does the step that follows a reply.
    fn settle(&mut self, due: Due) -> Result<(), StopReason> {
        if let Due::Consume(receipt) = &due {
            self.connection.consume(receipt)?;
        }
        let (Some(kept), Some(keep)) = (&mut self.kept, self.port.keep()) else { return Ok(()) };
        kept.tries = 0;
        keep.blob().set_tries(0);
        match due {
            Due::Consume(_) => drop(keep.blob().store(None, None)),
            Due::Store => self.store_state(None),
        }
        Ok(())
    }

    /// Settles a request that another weir had handled. If it is still in the socket, its reply may have been sent or
    /// not: a front end that has the reply continues.
    fn settle_doubt(&mut self, under_way: UnderWay) -> Result<(), StopReason> {
        let UnderWay { message, reply, with_inflight } = under_way;
        if let Some(ring) = stopped_by(&message) {
            self.forget(ring);
        }
        if !self.connection.begins_with(&message)? {
            return self.settle(Due::Store);
        }
        if !reply.is_empty() && !self.goes_on_after(message.len()) {
            let fd = self.kept.as_ref().and_then(|kept| kept.inflight).filter(|_| with_inflight);
            let fd = fd.and_then(|inflight| self.port.keep()?.copy(inflight.file));
            self.connection.send_bytes(reply, fd.into_iter().collect())?;
        }
        self.do_when_sent(Due::Consume(Receipt::of(&message)))
    }

    /// True if the socket has more than `len` bytes, now or soon.
    fn goes_on_after(&self, len: usize) -> bool {
        let end = Instant::now() + DOUBT;
        loop {
            match rustix::io::ioctl_fionread(&self.connection) {
                Ok(there) if there > len as u64 => return true,
                _ if Instant::now() > end => return false,
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Notes the descriptors that a successful request has brought.
    fn note(&mut self, brought: Brought, reply: Option<&Reply>) {
        let port = Arc::clone(&self.port);
        let (Some(kept), Some(keep)) = (&mut self.kept, port.keep()) else { return };
        let Kept { obsolete, rings, regions, .. } = kept;
        let mut ring = |index: usize, which: fn(&mut RingFiles) -> &mut Option<u32>, fd| {
            let number = Option::<OwnedFd>::map(fd, |fd| keep.store(fd));
            match rings.get_mut(index) {
                Some(ring) => Kept::replace(obsolete, which(ring), number),
                None => obsolete.extend(number),
            }
        };
        match brought {
            Brought::Nothing => {}
            Brought::Mtu(mtu) => kept.mtu = u16::try_from(mtu).ok(),
            Brought::Kick(index, fd) => ring(index, |ring| &mut ring.kick, Some(fd)),
            Brought::Call(index, fd) => ring(index, |ring| &mut ring.call, fd),
            Brought::Err(index, fd) => ring(index, |ring| &mut ring.err, fd),
            Brought::Requests(fd) if self.requests.is_some() => {
                Kept::replace(obsolete, &mut kept.requests, Some(keep.store(fd)));
            }
            Brought::Requests(_) => {}
            Brought::Regions { replaces, files } => {
                if replaces {
                    obsolete.extend(regions.drain(..).map(|(_, file)| file));
                }
                for (spec, fd) in files {
                    if !regions.iter().any(|(kept, _)| *kept == spec) {
                        regions.push((spec, keep.store(fd)));
                    }
                }
            }
            Brought::Log(DirtyLog { size, offset }, fd) => {
                obsolete.extend(kept.log.map(|log| log.file));
                kept.log = Some(LogState { size, offset, file: keep.store(fd) });
            }
            Brought::LogCall(fd) => {
                Kept::replace(obsolete, &mut kept.log_call, Some(keep.store(fd)));
            }
            Brought::Inflight(told, fd) => {
                obsolete.extend(kept.inflight.map(|inflight| inflight.file));
                kept.inflight = Some(InflightState::new(&told, keep.store(fd)));
            }
        }
        let made = reply.and_then(|reply| reply.inflight.as_ref());
        if let Some((told, fd)) = made.and_then(|(told, fd)| Some((told, fd.try_clone().ok()?))) {
            obsolete.extend(kept.inflight.map(|inflight| inflight.file));
            kept.inflight = Some(InflightState::new(told, keep.store(fd)));
        }
        // Parts of a migration that is over, regions that were removed, and rings that are out of service become
        // obsolete.
        let (has_log, has_call) = self.migration.has();
        kept.obsolete.extend(kept.log.take_if(|_| !has_log).map(|log| log.file));
        kept.obsolete.extend(kept.log_call.take_if(|_| !has_call));
        let memory = &self.memory;
        kept.regions.retain(|(spec, file)| {
            let stays = memory.has(spec);
            kept.obsolete.extend((!stays).then_some(*file));
            stays
        });
        for (ring, vring) in kept.rings.iter_mut().zip(&self.vrings) {
            if vring.watch.is_none() {
                Kept::replace(&mut kept.obsolete, &mut ring.kick, None);
            }
        }
    }

    fn state(&self, kept: &Kept) -> State {
        let region = |(spec, file): &(RegionSpec, u32)| {
            let again = self.repeated.iter().find(|(repeated, _)| repeated == spec);
            let RegionSpec { guest_address, size, user_address, mmap_offset } = *spec;
            let again = again.map_or(0, |(_, times)| *times);
            RegionState { guest_address, size, user_address, mmap_offset, again, file: *file }
        };
        let vring = |(vring, files): (&Vring, &RingFiles)| VringState {
            size: vring.size,
            addresses: vring.addresses.map(|at| [at.descriptor, at.driver, at.device]),
            base: vring.base,
            log: vring.log,
            said: vring.said,
            stopped_at: vring.stopped_at,
            enabled: vring.enabled,
            kick: files.kick,
            call: files.call,
            err: files.err,
        };
        State {
            connection: kept.connection,
            queue_pairs: self.vrings.len() / 2,
            features: self.features.0,
            protocol_features: self.protocol_features,
            status: self.status,
            owner_first: self.owner_first,
            foreign_endian: self.foreign_endian,
            halted: lock(&self.port.shown).halted,
            mtu: kept.mtu,
            requests: kept.requests,
            inflight: kept.inflight,
            log: kept.log,
            log_call: kept.log_call,
            regions: kept.regions.iter().map(region).collect(),
            vrings: self.vrings.iter().zip(&kept.rings).map(vring).collect(),
        }
    }

    /// Stores the changed state and the request under way.
    fn store_state(&mut self, under_way: Option<&UnderWay>) {
        let port = Arc::clone(&self.port);
        let Some(keep) = port.keep() else { return };
        let Some(state) = self.kept.as_ref().map(|kept| self.state(kept)) else { return };
        let Some(kept) = &mut self.kept else { return };
        let changed = state != kept.state;
        if !keep.blob().store(changed.then_some(&state), under_way) {
            return self.keep_no_longer();
        }
        kept.state = state;
        kept.obsolete.drain(..).for_each(|number| keep.remove(number));
    }

    /// Stops keeping the session, which is now lost if weir ends.
    pub(super) fn keep_no_longer(&mut self) {
        let (Some(kept), Some(keep)) = (self.kept.take(), self.port.keep()) else { return };
        keep.blob().invalidate();
        kept.numbers().for_each(|number| keep.remove(number));
    }

    /// Ends the kept session.
    pub(super) fn end_kept(&mut self) {
        if self.kept.is_some() {
            self.keep_no_longer();
            // The front end sees the end at once, however long the keeper takes to close its end.
            let _ = shutdown(&self.connection, Shutdown::Both);
        }
    }
}

impl UnderWay {
    fn new(message: Vec<u8>, reply: Option<&Reply>) -> Self {
        let bytes = reply.and_then(|reply| reply_bytes(reply.request, &reply.body).ok());
        let with_inflight = reply.is_some_and(|reply| reply.inflight.is_some());
        Self { message, reply: bytes.unwrap_or_default(), with_inflight }
    }
}

/// The ring that a request stops, if it stops one.
fn stopped_by(message: &[u8]) -> Option<usize> {
    let (head, body) = message.split_first_chunk::<HEADER_LEN>()?;
    let request = Header::decode(head).ok()?.request();
    let state = weir_vhost_user::VringState::decode(request, body).ok()?;
    (request == Request::GetVringBase).then_some(state.index as usize)
}

impl InflightState {
    fn new(told: &Inflight, file: u32) -> Self {
        let Inflight { mmap_size, mmap_offset, num_queues, queue_size } = *told;
        Self { mmap_size, mmap_offset, num_queues, queue_size, file }
    }

    fn told(&self) -> Inflight {
        let Self { mmap_size, mmap_offset, num_queues, queue_size, .. } = *self;
        Inflight { mmap_size, mmap_offset, num_queues, queue_size }
    }
}
