//! One front end's session: its requests, and their effect on the interface's rings.
//!
//! Ring life (vhost-user, "Ring states"):
//! ```text
//! SET_VRING_NUM/ADDR/BASE, SET_VRING_KICK ─▶ in service ── a kick ─▶ started ── GET_VRING_BASE ─▶ stopped
//! SET_VRING_ENABLE 1/0 (or, without F_PROTOCOL_FEATURES, from the start): enabled or not
//! ```
//! A disabled transmit ring is drained and its frames are dropped; a disabled receive ring gets nothing.

mod iommu;
mod kept;
mod log;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use virtio_bindings::virtio_net::VIRTIO_NET_S_LINK_UP;
use weir_engine::guest::{GuestDevice, GuestPort};
use weir_engine::{Engine, QueueRef, Side, Watch, clock, lock};
use weir_guestmem::{GuestMemory, RegionSpec};
use weir_limits::{MEM_SLOTS_MAX, MTU_MAX, MTU_MIN};
use weir_ring::{Addresses, DeviceRing, Origin, Record, ring_size};
use weir_sandbox::descriptors;
use weir_vhost_user::{
    ConfigSpace, Connection, FrontMessage, Incoming, Inflight, MemoryRegion, Payload, Request,
    RequestCode, VHOST_USER_PROTOCOL_F_BACKEND_REQ, VHOST_USER_PROTOCOL_F_CONFIG,
    VHOST_USER_PROTOCOL_F_CROSS_ENDIAN, VHOST_USER_PROTOCOL_F_LOG_SHMFD, VHOST_USER_PROTOCOL_F_MQ,
    VHOST_USER_PROTOCOL_F_REPLY_ACK, VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS, VringState,
};
use weir_wire::{Mac, rarp};

use crate::error::{Refusal, StopReason};
use crate::features::{Features, Offer};
use crate::migration::Migration;
use crate::notify::{Notifier, check_kick};
use crate::port::Said;
use crate::port::VhostPort;
use crate::queue::{Holds, Injected, Queue, Ring};
use crate::records::Region;
use iommu::{Iommu, Place};
use kept::Kept;

/// Bytes of a configuration space, as the protocol bounds them.
const CONFIG_SPACE_BYTES: usize = 256;

/// The facts that a front end has stated about one ring.
#[derive(Default)]
struct Vring {
    size: Option<u16>,
    addresses: Option<Addresses>,
    /// The place where the ring continues; `None` if no place was stated and the ring has not run.
    base: Option<u32>,
    /// `VHOST_VRING_F_LOG`: the guest address under which writes to its used area are logged.
    log: Option<u64>,
    /// The base that the front end stated last.
    said: Option<u32>,
    /// The base at which the ring was stopped last.
    stopped_at: Option<u32>,
    /// The kick descriptor under watch: the ring is in service.
    watch: Option<Watch>,
    /// The place of the ring in service: its addresses, or what a virtual IOMMU makes of them.
    place: Option<Place>,
    /// The ring is in service, and waits until its place is known: the ring, if it was served before.
    late: Option<Option<Box<Ring>>>,
    /// Descriptors by which the ring's queue calls, and reports a broken ring.
    call: bool,
    err: bool,
    enabled: bool,
}

pub(crate) struct Session {
    pub(crate) connection: Connection,
    port: Arc<VhostPort>,
    engine: Arc<Engine>,
    memory: GuestMemory,
    /// Regions that were added again, and the number of times.
    repeated: Vec<(RegionSpec, u32)>,
    features: Features,
    protocol_features: u64,
    /// The front end's channel for weir's requests, which are about translations. Some front ends
    /// mistake the channel's end for the session's.
    requests: Option<OwnedFd>,
    /// The virtual IOMMU, if the front end translates the driver's addresses by one.
    iommu: Option<Iommu>,
    /// The event that wakes the session's thread.
    wake: Arc<OwnedFd>,
    /// True if the session began with `SET_OWNER`, `None` until it is known: docs/design/front-ends.md#0055.
    owner_first: Option<bool>,
    device: GuestDevice,
    /// `SET_VRING_ENDIAN`: the driver has another byte order than this machine.
    foreign_endian: bool,
    status: u8,
    /// The area in which the front end keeps records of its rings; without it they are the port's.
    inflight: Option<Region>,
    migration: Migration,
    /// Two for each queue pair that was offered when the session began.
    vrings: Vec<Vring>,
    /// The part of the session that lies with the keeper.
    kept: Option<Kept>,
    /// The descriptors that the session has claimed.
    claimed: u64,
}

/// The reply that goes out when a request is handled.
struct Reply {
    request: RequestCode,
    body: Vec<u8>,
    /// An area for records, whose descriptor is sent along.
    inflight: Option<(Inflight, OwnedFd)>,
    /// The ring that has stopped.
    stopped: Option<usize>,
}

impl Reply {
    fn new(request: RequestCode, body: Vec<u8>) -> Self {
        Self { request, body, inflight: None, stopped: None }
    }
}

enum Answer {
    /// Nothing, or an acknowledgement if the front end asked for one.
    Done,
    Number(u64),
    Vring(VringState),
    Inflight(Inflight, OwnedFd),
    Config(ConfigSpace),
}

/// A connection whose descriptors may not lie in the reserve.
pub(crate) fn connection(stream: UnixStream) -> Connection {
    Connection::new(stream).taking(|fd| descriptors::for_guest(fd).is_ok())
}

impl Session {
    pub(crate) fn new(
        connection: Connection,
        port: Arc<VhostPort>,
        engine: Arc<Engine>,
        wake: Arc<OwnedFd>,
    ) -> Self {
        port.clear_failure();
        let queue_pairs = port.offered_queue_pairs();
        let mut shown = lock(&port.shown);
        (shown.connected, shown.has_spoken) = (true, false);
        shown.queue_pairs = Some(queue_pairs);
        let peer = rustix::net::sockopt::socket_peercred(connection.as_fd());
        shown.front_end = peer.ok().map(|peer| peer.pid);
        shown.opened += 1;
        shown.features = 0;
        drop(shown);
        let memory = GuestMemory::new(Arc::clone(port.memory()));
        let device = port.device();
        let vrings = (0..2 * queue_pairs).map(|_| Vring::default()).collect();
        Self {
            connection,
            port,
            engine,
            memory,
            repeated: Vec::new(),
            features: Features::default(),
            protocol_features: 0,
            requests: None,
            iommu: None,
            wake,
            owner_first: None,
            device,
            foreign_endian: false,
            status: 0,
            inflight: None,
            migration: Migration::default(),
            vrings,
            kept: None,
            claimed: 0,
        }
    }

    /// Claims the descriptors that the session holds. A session that gets none for its copies
    /// continues without copies, and ends together with weir.
    fn claim(&mut self) -> Result<(), StopReason> {
        let mut held = self.held();
        if held != self.claimed && self.kept.is_some() && self.port.claim(held).is_err() {
            self.keep_no_longer();
            held = self.held();
        }
        if held != self.claimed {
            self.port.claim(held)?;
            self.claimed = held;
        }
        Ok(())
    }

    /// The descriptors that the session holds between two messages.
    fn held(&self) -> u64 {
        let of_ring = |it: &Vring| [it.watch.is_some(), it.call, it.err].map(u64::from);
        let rings: u64 = self.vrings.iter().flat_map(of_ring).sum();
        let own = [self.requests.is_some(), self.migration.has().1].map(u64::from);
        let copies = self.kept.as_ref().map_or(0, |kept| kept.numbers().count() as u64);
        // The connection, and the event that ends the session.
        2 + own.iter().sum::<u64>() + rings + copies
    }

    /// The interface that the session serves.
    pub(crate) fn port(&self) -> &Arc<VhostPort> {
        &self.port
    }

    /// Serves one request, if there is one.
    pub(crate) fn serve(&mut self) -> Result<(), StopReason> {
        self.connection.flush()?;
        // weir does not read from a front end that does not read its replies.
        if self.connection.wants_write() {
            return Ok(());
        }
        if self.kept.as_ref().is_none_or(Kept::is_settled) {
            self.claim()?;
        }
        if self.kept.is_some() {
            return self.serve_kept();
        }
        self.connection.receive()?.map_or(Ok(()), |incoming| self.answer(incoming))
    }

    fn answer(&mut self, incoming: Incoming) -> Result<(), StopReason> {
        self.reply_to(incoming)?.map_or(Ok(()), |reply| self.give(reply))
    }

    /// Handles a request and returns the reply.
    fn reply_to(&mut self, incoming: Incoming) -> Result<Option<Reply>, StopReason> {
        let Incoming { request, need_reply, message } = incoming;
        let own_reply = request.known().is_some_and(Request::has_own_reply);
        tracing::debug!(vif = self.port.name(), %request, "request");
        lock(&self.port.shown).has_spoken = true;
        let handled = self.handle(message);
        // The check comes only now: the request that agrees on REPLY_ACK may ask for an acknowledgement itself.
        let reply_ack = self.has_protocol(VHOST_USER_PROTOCOL_F_REPLY_ACK);
        let ack = need_reply && reply_ack && !own_reply;
        Ok(match handled {
            Ok(Answer::Number(value)) => Some(Reply::new(request, value.encode())),
            Ok(Answer::Vring(state)) => {
                let stopped = Some(state.index as usize);
                Some(Reply { stopped, ..Reply::new(request, state.encode()) })
            }
            Ok(Answer::Inflight(told, fd)) => {
                let inflight = Some((told, fd));
                Some(Reply { inflight, ..Reply::new(request, told.encode()) })
            }
            Ok(Answer::Config(space)) => Some(Reply::new(request, space.encode())),
            Ok(Answer::Done) => ack.then(|| Reply::new(request, 0u64.encode())),
            Err(refusal) => {
                if ack || request == Request::IotlbMsg {
                    self.connection.ack(request, false)?;
                }
                return Err(StopReason::Refused { request, refusal });
            }
        })
    }

    fn give(&mut self, reply: Reply) -> Result<(), StopReason> {
        let Reply { request, body, inflight, stopped } = reply;
        let fds = inflight.into_iter().map(|(_, fd)| fd).collect();
        self.connection.send_reply(request, &body, fds)?;
        // The record is erased only after the front end has the ring's position: it states the position when it
        // connects again.
        stopped.into_iter().for_each(|ring| self.forget(ring));
        Ok(())
    }

    /// The front end has acknowledged a protocol feature.
    fn has_protocol(&self, feature: u32) -> bool {
        self.protocol_features & 1 << feature != 0
    }

    fn handle(&mut self, message: FrontMessage) -> Result<Answer, Refusal> {
        match message {
            FrontMessage::GetFeatures => return Ok(Answer::Number(self.offer().features())),
            FrontMessage::SetFeatures(features) => self.set_features(features)?,
            FrontMessage::GetProtocolFeatures => {
                self.owner_first.get_or_insert(false);
                return Ok(Answer::Number(self.offer().protocol_features()));
            }
            FrontMessage::SetProtocolFeatures(features) => {
                refuse_unoffered(features, self.offer().protocol_features())?;
                self.protocol_features = features;
            }
            // A session has one owner.
            FrontMessage::SetOwner => {
                self.owner_first.get_or_insert(true);
            }
            // Deprecated; "use it to disable all rings".
            FrontMessage::ResetOwner => self.enable_all(false),
            FrontMessage::ResetDevice => self.reset(),
            FrontMessage::SetStatus(status) => self.set_status(status)?,
            FrontMessage::GetStatus => return Ok(Answer::Number(self.status.into())),
            // Rings, not pairs: docs/design/front-ends.md#0048.
            FrontMessage::GetQueueNum => return Ok(Answer::Number(self.vrings.len() as u64)),
            FrontMessage::GetMaxMemSlots => return Ok(Answer::Number(MEM_SLOTS_MAX as u64)),
            FrontMessage::SetMemTable(regions) => self.set_mem_table(regions)?,
            FrontMessage::AddMemReg { region, fd } => self.add_region(spec(&region), fd)?,
            FrontMessage::RemMemReg(region) => self.remove_region(&spec(&region))?,
            FrontMessage::SetVringNum(VringState { index, num }) => {
                let size = ring_size(num, self.features.packed())?;
                self.vring(index)?.size = Some(size);
            }
            FrontMessage::SetVringAddr(addr) => {
                self.set_addresses(&addr)?;
            }
            FrontMessage::SetVringBase(VringState { index, num }) => {
                if !self.features.packed() && num > u16::MAX.into() {
                    return Err(Refusal::Base(num));
                }
                let vring = self.vring(index)?;
                (vring.base, vring.said) = (Some(num), Some(num));
            }
            FrontMessage::GetVringBase { index } => {
                self.vring(index)?;
                let num = self.stop_ring(index as usize);
                return Ok(Answer::Vring(VringState { index, num }));
            }
            FrontMessage::SetVringKick { index, fd } => {
                self.vring(index)?;
                self.start_service(index, fd.ok_or(Refusal::NoKick(index))?)?;
            }
            FrontMessage::SetVringCall { index, fd } => {
                self.vring(index)?;
                let call = self.notifier("call", index, fd)?;
                self.vring(index)?.call = call.is_some();
                let with = |queue: &mut Queue| {
                    let old = std::mem::replace(&mut queue.call, call);
                    queue.call_if_resumed();
                    old
                };
                // The descriptor is closed without the queue's lock: nobody knows how long that takes.
                drop(self.port.with_queue(index as usize, with));
            }
            FrontMessage::SetVringErr { index, fd } => {
                self.vring(index)?;
                let err = self.notifier("err", index, fd)?;
                self.vring(index)?.err = err.is_some();
                let with = |queue: &mut Queue| std::mem::replace(&mut queue.err, err);
                drop(self.port.with_queue(index as usize, with));
            }
            FrontMessage::SetVringEnable { index, enable } => {
                self.vring(index)?;
                self.enable(index as usize, enable);
            }
            FrontMessage::NetSetMtu(mtu) => {
                let valid = u16::try_from(mtu).ok().filter(|mtu| (MTU_MIN..=MTU_MAX).contains(mtu));
                lock(&self.port.shown).mtu = Some(valid.ok_or(Refusal::Mtu(mtu))?);
            }
            FrontMessage::SendRarp(mac) => self.send_rarp(mac),
            FrontMessage::SetBackendReqFd(fd)
                if self.has_protocol(VHOST_USER_PROTOCOL_F_BACKEND_REQ) =>
            {
                self.requests = Some(fd);
                self.find_iommu()?;
            }
            FrontMessage::SetLogBase(base)
                if self.has_protocol(VHOST_USER_PROTOCOL_F_LOG_SHMFD) =>
            {
                self.migration.set_base(base, &self.memory, self.port.memory())?;
                self.log_all_rings()?;
                return Ok(Answer::Number(0));
            }
            FrontMessage::SetLogBase(_) => return Err(Refusal::LogNotShared),
            FrontMessage::SetLogFd(fd) => {
                self.migration.set_call(Notifier::new(&self.port, 0, "log", fd)?);
                self.log_all_rings()?;
            }
            FrontMessage::GetInflightFd(wanted) => return self.make_inflight(wanted),
            FrontMessage::SetInflightFd { inflight, fd } => self.set_inflight(&inflight, fd)?,
            FrontMessage::SetVringEndian(VringState { index, num })
                if self.has_protocol(VHOST_USER_PROTOCOL_F_CROSS_ENDIAN) =>
            {
                self.vring(index)?;
                self.foreign_endian |= (num != 0) != cfg!(target_endian = "big");
                self.stop_if_foreign();
            }
            FrontMessage::GetConfig(wanted) if self.has_protocol(VHOST_USER_PROTOCOL_F_CONFIG) => {
                return Ok(Answer::Config(self.config_space(wanted)));
            }
            FrontMessage::SetConfig(_) if self.has_protocol(VHOST_USER_PROTOCOL_F_CONFIG) => {
                return Err(Refusal::ConfigIsFixed);
            }
            FrontMessage::Iotlb(message) => {
                self.take_translation(&message)?;
                return Ok(Answer::Number(0));
            }
            FrontMessage::VringKick { .. }
            | FrontMessage::SetVringEndian(_)
            | FrontMessage::SetBackendReqFd(_)
            | FrontMessage::GetConfig(_)
            | FrontMessage::SetConfig(_)
            | FrontMessage::Unknown { .. } => return Err(Refusal::Unsupported),
        }
        Ok(Answer::Done)
    }

    fn offer(&self) -> Offer {
        Offer {
            queue_pairs: self.vrings.len() / 2,
            config: self.owner_first == Some(true),
            access_platform: self.device.access_platform,
        }
    }

    /// `GET_CONFIG`: the configuration space that the guest's driver reads (virtio 1.2 §5.1.4). Fields of features that
    /// are not offered are 0.
    fn config_space(&self, wanted: ConfigSpace) -> ConfigSpace {
        let GuestDevice { mac, mtu, .. } = self.device;
        let pairs = self.vrings.len() / 2;
        let mut space = [0; CONFIG_SPACE_BYTES];
        let fields = [VIRTIO_NET_S_LINK_UP as u16, pairs as u16, mtu].map(u16::to_le_bytes);
        space[..12].copy_from_slice(&[&mac[..], fields.as_flattened()].concat());
        let from = wanted.offset as usize;
        let part = from.checked_add(wanted.bytes.len()).and_then(|end| space.get(from..end));
        // An empty answer is an error in the protocol.
        ConfigSpace { bytes: part.unwrap_or_default().to_vec(), ..wanted }
    }

    /// Stops the port of a driver whose rings weir would read wrongly, until the device is reset.
    fn stop_if_foreign(&self) {
        if self.foreign_endian {
            self.port.stop(&StopReason::ForeignEndian);
        }
    }

    fn vring(&mut self, index: u32) -> Result<&mut Vring, Refusal> {
        let rings = self.vrings.len();
        self.vrings.get_mut(index as usize).ok_or(Refusal::NoSuchRing { index, rings })
    }

    fn set_features(&mut self, features: u64) -> Result<(), Refusal> {
        refuse_unoffered(features, self.offer().features())?;
        let logged = std::mem::replace(&mut self.features, Features(features)).log_all();
        lock(&self.port.shown).features = features;
        self.find_iommu()?;
        if self.features.log_all() != logged {
            self.end_log_if_unused();
            self.log_all_rings()?;
        }
        if !self.features.protocol_features() {
            self.enable_all(true);
        }
        Ok(())
    }

    fn set_status(&mut self, status: u64) -> Result<(), Refusal> {
        self.status = u8::try_from(status).map_err(|_| Refusal::Status(status))?;
        if self.status == 0 {
            // virtio 1.2 §2.1.1: the driver resets the device.
            self.stop_all();
            self.forget_all();
            self.foreign_endian = false;
            self.port.clear_failure();
        }
        Ok(())
    }

    /// `RESET_DEVICE`: resets everything but the session and its memory.
    fn reset(&mut self) {
        self.stop_all();
        self.forget_all();
        self.enable_all(false);
        for vring in &mut self.vrings {
            *vring = Vring { call: vring.call, err: vring.err, ..Vring::default() };
        }
        self.features = Features::default();
        self.iommu = None;
        self.migration.end();
        lock(&self.port.shown).halted = false;
        self.status = 0;
        self.foreign_endian = false;
        self.port.clear_failure();
    }

    fn set_mem_table(&mut self, regions: Vec<(MemoryRegion, OwnedFd)>) -> Result<(), Refusal> {
        let regions: Vec<_> =
            regions.into_iter().map(|(region, fd)| (spec(&region), File::from(fd))).collect();
        let memory = self.memory.replaced_by(&regions)?;
        self.repeated.clear();
        self.use_memory(memory)
    }

    /// QEMU before 8.1 adds each region once for each queue pair, and removes it as often.
    fn add_region(&mut self, spec: RegionSpec, fd: OwnedFd) -> Result<(), Refusal> {
        if self.memory.has(&spec) {
            match self.repeated.iter_mut().find(|(repeated, _)| *repeated == spec) {
                Some((_, times)) => *times = times.saturating_add(1),
                // There are at most as many entries as regions.
                None => self.repeated.push((spec, 1)),
            }
            return Ok(());
        }
        let mut memory = self.memory.clone();
        memory.add(spec, &File::from(fd))?;
        self.use_memory(memory)
    }

    fn remove_region(&mut self, spec: &RegionSpec) -> Result<(), Refusal> {
        let same = |repeated: &RegionSpec| {
            (repeated.guest_address, repeated.user_address, repeated.size)
                == (spec.guest_address, spec.user_address, spec.size)
        };
        if let Some(at) = self.repeated.iter().position(|(repeated, _)| same(repeated)) {
            match &mut self.repeated[at].1 {
                1 => drop(self.repeated.swap_remove(at)),
                times => *times -= 1,
            }
            return Ok(());
        }
        let mut memory = self.memory.clone();
        memory.remove(spec)?;
        self.use_memory(memory)
    }

    /// Replaces the memory table; rings in service use the new one.
    fn use_memory(&mut self, memory: GuestMemory) -> Result<(), Refusal> {
        lock(&self.port.shown).memory_bytes = memory.size_bytes();
        self.memory = memory;
        if let Some(iommu) = &mut self.iommu {
            iommu.use_memory(&self.memory);
        }
        (0..self.vrings.len()).try_for_each(|ring| self.rebuild(ring))?;
        if let Some(iommu) = &mut self.iommu {
            iommu.free_retired();
        }
        Ok(())
    }

    /// Builds a ring in service again at its current place, after its memory or its addresses changed.
    fn rebuild(&mut self, index: usize) -> Result<(), Refusal> {
        let vring = &self.vrings[index];
        let (Some(_), Some(size)) = (&vring.watch, vring.size) else {
            return Ok(());
        };
        if vring.late.is_some() {
            self.drop_aside(index);
            return self.serve_late(index);
        }
        let Some(old) = self.port.stop_ring(index) else {
            return Ok(());
        };
        let (base, started) = (old.device.base(), old.is_started());
        let expects_enable = old.holds.has(Holds::ENABLE);
        // The second mappings of the old ring end before the new one's begin.
        drop(old.device);
        self.retire(old.memory);
        let Some(place) = self.place_of(index)? else {
            self.vrings[index].base = Some(base);
            self.wait_for_place(index);
            return Ok(());
        };
        let memory = self.memory_at(index, &place)?;
        let mut ring = self.build(index, size, &place, memory, base, started)?;
        ring.holds.set(Holds::ENABLE, expects_enable);
        self.port.with_queue(index, |queue| queue.ring = Some(ring));
        self.vrings[index].place = Some(place);
        self.nudge(index);
        Ok(())
    }

    fn build(
        &self,
        index: usize,
        size: u16,
        place: &Place,
        memory: GuestMemory,
        base: u32,
        started: bool,
    ) -> Result<Ring, Refusal> {
        let (config, addresses) = (self.features.ring(size), &place.at);
        // Each ring has its own copy of the table of shared mappings: each burst counts as its user, and workers of
        // other rings must not wait for that cache line.
        let memory = Arc::new(memory);
        let origin = self.memory.file_at(addresses.descriptor);
        let record = self.record(index, size).zip(origin);
        let device = match record {
            Some((record, memory_file)) => {
                let origin = Origin { memory: memory_file, at: *addresses };
                let said = self.vrings[index].said.unwrap_or(config.fresh_base());
                DeviceRing::recorded(&memory, config, addresses, base, said, record, &origin)?
            }
            None => DeviceRing::new(&memory, config, addresses, base)?,
        };
        let containers = self.has_protocol(VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS);
        let kicks = self.port.kicks(index);
        let logs = self.logs(index, &config, place)?;
        let seen = self.seen_by(index).map(|seen| Arc::new(seen.joined_as(&memory)));
        let memory = seen.unwrap_or(memory);
        let mut ring = Ring::new(device, memory, self.features, containers, started, kicks);
        ring.set_logs(logs);
        Ok(ring)
    }

    /// The record of the state that vring `index` needs to continue without weir.
    fn record(&self, index: usize, size: u16) -> Option<Record> {
        match &self.inflight {
            Some(region) => region.record(index, size),
            None => self.port.record(index, size),
        }
    }

    /// Erases the ring's record. The ring then continues at its position only if its front end states the position.
    fn forget(&self, index: usize) {
        let size = self.vrings.get(index).and_then(|vring| vring.size);
        if let Some(record) = size.and_then(|size| self.record(index, size)) {
            record.forget();
        }
    }

    fn forget_all(&self) {
        (0..self.vrings.len()).for_each(|index| self.forget(index));
    }

    /// `GET_INFLIGHT_FD`.
    fn make_inflight(&mut self, wanted: Inflight) -> Result<Answer, Refusal> {
        if self.inflight.is_some() {
            return Err(Refusal::SecondInflight);
        }
        let account = self.port.memory();
        let (region, told, fd) = Region::make(wanted, self.vrings.len(), account)?;
        self.inflight = Some(region);
        Ok(Answer::Inflight(told, fd))
    }

    /// `SET_INFLIGHT_FD`, before rings are in service. Until it comes, the port may have kept their records.
    fn set_inflight(&mut self, told: &Inflight, fd: OwnedFd) -> Result<(), Refusal> {
        self.inflight = Some(Region::over(told, fd, self.vrings.len(), self.port.memory())?);
        Ok(())
    }

    /// `SET_VRING_KICK`: the ring is complete, and from its first kick on it is served.
    fn start_service(&mut self, index: u32, kick: OwnedFd) -> Result<(), Refusal> {
        let ring_index = index as usize;
        if ring_index >= 2 && !self.has_protocol(VHOST_USER_PROTOCOL_F_MQ) {
            return Err(Refusal::ManyWithoutMq(index));
        }
        check_kick(&kick)?;
        self.stop_ring_keeping_base(ring_index);
        if self.vrings[ring_index].size.is_none() || self.vrings[ring_index].addresses.is_none() {
            return Err(Refusal::RingIncomplete(index));
        }
        let resumed = match self.place_of(ring_index)? {
            Some(place) => self.put_in_service(ring_index, place, false)?,
            None => {
                self.wait_for_place(ring_index);
                false
            }
        };
        // The port is active before the kick is watched: the first frame can come with it.
        if !self.engine.fabric().is_active(self.port.id()) {
            let _ = self.engine.fabric().set_active(self.port.id(), true);
        }
        lock(&self.port.shown).halted = false;
        let watch = self
            .engine
            .watch(self.queue_ref(ring_index), kick)
            .map_err(|error| Refusal::Descriptor { what: "kick", error })?;
        self.vrings[ring_index].watch = Some(watch);
        if resumed {
            self.nudge(ring_index);
        }
        Ok(())
    }

    /// Puts a ring at `place` in service. Returns whether it is served at once: it ran before, or `starts`.
    fn put_in_service(
        &mut self,
        ring_index: usize,
        place: Place,
        starts: bool,
    ) -> Result<bool, Refusal> {
        let vring = &self.vrings[ring_index];
        let Some(size) = vring.size else { return Err(Refusal::RingIncomplete(ring_index as u32)) };
        let memory = self.memory_at(ring_index, &place)?;
        let meant = |base| self.meant_base(base, vring, size, &memory, &place.at);
        let base = vring.base.map(meant);
        // A ring with a base ran before this session: its driver may have no reason to kick, or a previous switch
        // may have turned kicks off.
        let fresh = self.features.ring(size).fresh_base();
        let base = base.unwrap_or(fresh);
        // Some front ends state only the lower half of a packed ring's base.
        let mut ring = self.build(ring_index, size, &place, memory, base, false)?;
        let stands = ring.device.base();
        let is_fresh = [base, stands].iter().all(|base| *base as u16 == fresh as u16);
        let resumed = !is_fresh || ring.device.is_resumed();
        self.say_if_disputed(ring_index, base, &ring.device);
        ring.holds.set(Holds::KICK, !resumed && !starts);
        ring.resumed = resumed;
        self.port.with_queue(ring_index, |queue| {
            ring.holds.set(Holds::ENABLE, resumed && !queue.enabled);
            (queue.ring, queue.late) = (Some(ring), None);
            queue.call_if_resumed();
        });
        self.vrings[ring_index].place = Some(place);
        Ok(resumed || starts)
    }

    /// The base that the front end means. User-mode Linux states 0 for a packed ring that has not run, whose wrap
    /// counters begin at 1. A ring that really stands at 0 with wrap counters of 0 has gone all around, and its first
    /// descriptor is marked used.
    fn meant_base(
        &self,
        base: u32,
        vring: &Vring,
        size: u16,
        memory: &GuestMemory,
        addresses: &Addresses,
    ) -> u32 {
        let config = self.features.ring(size);
        if base != 0 || !config.packed || vring.stopped_at == Some(base) {
            return base;
        }
        let memory = Arc::new(memory.clone());
        let untouched = weir_ring::is_untouched(&memory, addresses, size);
        if untouched { config.fresh_base() } else { base }
    }

    /// Logs a base that differs from the ring's place: the front end took chains while no back end was there, or is
    /// wrong.
    fn say_if_disputed(&self, ring: usize, said: u32, device: &DeviceRing) {
        let (stands, vif) = (device.base(), self.port.name());
        // Some front ends state the lower half only, and some state for each ring that it is new.
        let news = said != device.config().fresh_base() && said as u16 != stands as u16;
        if news && !device.is_resumed() {
            self.port.log(Said::Base, |unsaid| {
                tracing::warn!(
                    vif,
                    ring,
                    said,
                    stands,
                    unsaid,
                    "the front end's base is not where the ring stands: what was taken and not returned is taken again"
                );
            });
        }
    }

    fn queue_ref(&self, ring: usize) -> QueueRef {
        let side = if ring.is_multiple_of(2) { Side::Rx } else { Side::Tx };
        QueueRef { port: self.port.id(), queue: ring / 2, side }
    }

    /// Makes a worker serve a ring that is started.
    fn nudge(&self, ring: usize) {
        let started = self.port.with_queue(ring, |q| q.ring.as_ref().is_some_and(Ring::is_started));
        if started == Some(true) {
            self.engine.nudge(self.queue_ref(ring));
        }
    }

    fn enable(&mut self, ring: usize, enabled: bool) {
        self.vrings[ring].enabled = enabled;
        self.port.with_queue(ring, |queue| {
            queue.enabled = enabled;
            if let Some(ring) = &mut queue.ring {
                ring.holds.set(Holds::ENABLE, false);
            }
        });
        self.nudge(ring);
    }

    fn enable_all(&mut self, enabled: bool) {
        (0..self.vrings.len()).for_each(|ring| self.enable(ring, enabled));
    }

    /// Takes a ring out of service and returns its base.
    fn stop_ring(&mut self, index: usize) -> u32 {
        lock(&self.port.shown).halted |= self.vrings[index].watch.is_some();
        self.stop_ring_keeping_base(index);
        if self.vrings.iter().all(|vring| vring.watch.is_none()) {
            // Each change copies the table of all ports.
            if !weir_foreign::is_left_to_exit() {
                let _ = self.engine.fabric().set_active(self.port.id(), false);
            }
            // A front end tells of no end of a translation while its device is stopped.
            self.forget_translations();
        }
        let vring = &self.vrings[index];
        vring.base.unwrap_or(self.features.ring(vring.size.unwrap_or_default()).fresh_base())
    }

    fn stop_ring_keeping_base(&mut self, index: usize) {
        self.vrings[index].watch = None;
        let aside = self.vrings[index].late.take().flatten();
        if let Some(ring) = self.port.stop_ring(index).or(aside.map(|ring| *ring)) {
            self.vrings[index].base = Some(ring.device.base());
            self.vrings[index].stopped_at = Some(ring.device.base());
            self.retire(ring.memory);
        }
    }

    /// Stops the rings, and keeps the session no longer.
    pub(crate) fn stop(&mut self) {
        self.end_kept();
        self.stop_all();
    }

    fn stop_all(&mut self) {
        for index in 0..self.vrings.len() {
            self.stop_ring(index);
        }
    }

    /// Makes a descriptor of vring `index` usable for calls.
    fn notifier(
        &self,
        what: &'static str,
        index: u32,
        fd: Option<OwnedFd>,
    ) -> Result<Option<Notifier>, Refusal> {
        fd.map(|fd| Notifier::new(&self.port, index as usize, what, fd)).transpose()
    }

    /// `SEND_RARP`: after a migration, tells the network where the guest is now.
    fn send_rarp(&self, mac: [u8; 6]) {
        let now_secs = clock::secs(clock::now_ns());
        let tags = self.engine.fabric().announcement_tags(self.port.id(), Mac(mac), now_secs);
        self.port.inject(Injected { frame: rarp(Mac(mac)).into(), tags });
        self.engine.nudge(self.queue_ref(1));
    }
}

impl Drop for Session {
    /// Stops the rings and unmaps the memory, however the session ends.
    fn drop(&mut self) {
        self.stop();
        for ring in 0..self.vrings.len() {
            let descriptors = self.port.with_queue(ring, |queue| {
                queue.enabled = false;
                (queue.call.take(), queue.err.take())
            });
            // The descriptors are closed without the queue's lock.
            drop(descriptors);
        }
        if !weir_foreign::is_left_to_exit() {
            // The next front end need not have this guest's address.
            let _ = self.engine.fabric().reset_mac_check(self.port.id());
        }
        let mut shown = lock(&self.port.shown);
        (shown.connected, shown.halted) = (false, false);
        shown.queue_pairs = None;
        shown.front_end = None;
        shown.memory_bytes = 0;
    }
}

fn refuse_unoffered(features: u64, offered: u64) -> Result<(), Refusal> {
    match features & !offered {
        0 => Ok(()),
        extra => Err(Refusal::NotOffered(extra)),
    }
}

fn spec(region: &MemoryRegion) -> RegionSpec {
    RegionSpec {
        guest_address: region.guest_address,
        size: region.size,
        user_address: region.user_address,
        mmap_offset: region.mmap_offset,
    }
}
