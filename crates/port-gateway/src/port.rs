//! weir as a station of a network, as the engine sees it.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use weir_engine::burst::{Burst, Frame, Scratch};
use weir_engine::{Ask, Delivered, Forward, Outgoing, Port, PortCounters, Side, Taken, clock};
use weir_fabric::{Fdb, PortId, Snooping, Vid};
use weir_limits::OWN_FRAME_LEN_MAX;
use weir_policy::steering::{Receiver, Steering};
use weir_port_tap::{FramePort, UplinkPort};
use weir_wire::{Ethernet, Mac, Neighbour};

use crate::advert::{RaSettings, link_local};
use crate::answer::Station;
use crate::desk::{AnswerDevice, Asked, Bell, Desk, GatewayCounters, HostSide};

/// The network, and weir's addresses in it.
pub struct GatewaySettings {
    /// The port's name.
    pub name: String,
    /// The network's number in the fabric.
    pub vid: Vid,
    /// weir's MAC address in it.
    pub mac: Mac,
    /// Its IP addresses.
    pub ips: Vec<IpAddr>,
    /// weir answers DHCP.
    pub has_dhcp: bool,
    /// weir answers DNS.
    pub has_names: bool,
    /// The contents of router advertisements, if weir sends them.
    pub ra: Option<RaSettings>,
    /// Multicast snooping of the network, with the number of this port: weir asks guests for their groups.
    pub snooping: Option<(Arc<Snooping>, PortId)>,
    /// The host, if it has these addresses. The host gets the frames for them that weir does not answer.
    pub host: Option<HostSide>,
}

/// A guest of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Its interface.
    pub vif: String,
    /// The configured MTU of the interface, if there is one.
    pub mtu: Option<u16>,
    /// The fixed address from the interface's section, if there is one.
    pub fixed: Option<Ipv4Addr>,
    /// All configured addresses of the guest in the network.
    pub ips: Vec<IpAddr>,
}

/// weir in a network, as a port of the switch.
pub struct GatewayPort {
    inner: FramePort,
    station: Station,
    desk: Arc<Desk>,
    counters: Arc<PortCounters>,
}

impl GatewayPort {
    /// Creates a port of the switch that has this `fdb`. The port counts into `counters`.
    pub fn new(
        settings: GatewaySettings,
        bell: Bell,
        fdb: Arc<Fdb>,
        counters: Arc<PortCounters>,
    ) -> Self {
        let GatewaySettings { name, vid, mac, mut ips, has_dhcp, has_names, ra, snooping, host } =
            settings;
        // Guests solicit the source address of the advertisements.
        ips.extend(ra.as_ref().map(|_| IpAddr::from(link_local(mac))));
        let desk = Arc::new(Desk::new(vid, fdb, snooping, bell.rung));
        let station = Station { mac, ips, has_dhcp, has_names, is_host: host.is_some(), ra };
        let device = AnswerDevice::new(name, Arc::clone(&desk), bell.heard, host);
        let inner = FramePort::new(device, Arc::clone(&counters));
        Self { inner, station, desk, counters }
    }

    /// Sets the guest behind a port; `None` removes it.
    pub fn set_guest(&self, port: PortId, guest: Option<Guest>) {
        self.desk.set_guest(port, guest);
    }

    /// weir's addresses in the network, or the host's.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.station.ips
    }

    /// The counters of answers.
    pub fn answered(&self) -> &GatewayCounters {
        &self.desk.counters
    }

    /// The last request of the guest behind `port` for a neighbour other than weir, and another guest that uses the
    /// same address.
    pub fn asked(&self, port: PortId) -> Option<(Asked, Option<String>)> {
        self.desk.asked(port, clock::secs(clock::now_ns()))
    }

    pub(crate) fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    pub(crate) fn station(&self) -> &Station {
        &self.station
    }

    /// Takes the frames for weir, and delivers the others to the host.
    fn deliver_beside_host(
        &self,
        queue: usize,
        burst: &Burst<'_>,
        frames: &[Outgoing],
    ) -> Delivered {
        let frame_of = |outgoing: &Outgoing| burst.frames().get(usize::from(outgoing.frame));
        let is_for_weir = |outgoing: &Outgoing| {
            let head = frame_of(outgoing).map(|frame| frame.head.as_slice());
            head.is_some_and(|head| {
                self.station.may_want(head)
                    && (self.station.wants(head).is_some() || self.hears(head))
            })
        };
        for run in frames.chunk_by(|one, next| is_for_weir(one) == is_for_weir(next)) {
            match run.first().is_some_and(is_for_weir) {
                true => {
                    run.iter().filter_map(frame_of).for_each(|frame| self.look_at(burst, frame))
                }
                // Frames that the host does not take are lost.
                false => _ = self.inner.deliver(queue, burst, run),
            }
        }
        Delivered { frames: frames.len(), ..Delivered::default() }
    }

    /// Remembers a request for another neighbour. Returns `false`: the frame is not for weir.
    fn hears(&self, head: &[u8]) -> bool {
        if Neighbour::may_be(head) {
            self.desk.hear(head, clock::secs(clock::now_ns()));
        }
        false
    }

    /// Copies a frame that is for weir.
    fn look_at(&self, burst: &Burst<'_>, frame: &Frame) {
        let head = frame.head.as_slice();
        let Some(wanted) = self.station.wants(head) else {
            let is_for_weir = Ethernet::parse(head).is_ok_and(|it| it.dst == self.station.mac);
            self.desk.counters.ignored.add(is_for_weir.into());
            self.hears(head);
            return;
        };
        let Ok(Ethernet { src, .. }) = Ethernet::parse(head) else { return };
        // The fabric has learned the sender when the burst was taken. A frame of an unknown sender is not answered.
        let now_secs = clock::secs(clock::now_ns());
        let Some(from) = self.desk.fdb.lookup(self.desk.vid, src, now_secs) else { return };
        self.desk.arrive(from, wanted, || {
            let len = frame.len as usize;
            if len > OWN_FRAME_LEN_MAX || frame.offload.gso().is_some() {
                return None;
            }
            let mut copy = vec![0; len];
            let (front, mut rest) = copy.split_at_mut_checked(head.len())?;
            front.copy_from_slice(head);
            for piece in burst.payload(frame) {
                let read = piece.read(rest);
                rest = rest.get_mut(read..)?;
            }
            Some(copy)
        });
    }
}

impl Port for GatewayPort {
    fn take(&self, queue: usize, ask: Ask, scratch: &mut Scratch, forward: Forward<'_>) -> Taken {
        self.inner.take(queue, ask, scratch, forward)
    }

    fn deliver(&self, queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        if self.station.is_host {
            return self.deliver_beside_host(queue, burst, frames);
        }
        let (mut count, mut bytes) = (0, 0);
        for outgoing in frames {
            let Some(frame) = burst.frames().get(usize::from(outgoing.frame)) else { continue };
            count += 1;
            bytes += u64::from(frame.len);
            self.look_at(burst, frame);
        }
        if let Some(rx) = self.counters.rx.get(queue) {
            rx.frames.add(count);
            rx.bytes.add(bytes);
        }
        Delivered { frames: frames.len(), ..Delivered::default() }
    }

    fn arm_tx(&self, queue: usize) -> bool {
        self.inner.arm_tx(queue)
    }

    fn kicked(&self, queue: usize, side: Side) {
        self.inner.kicked(queue, side);
    }

    /// The queue of answers receives nothing.
    fn rx_queues(&self) -> usize {
        self.inner.rx_queues().min(1)
    }

    fn steering(&self) -> Option<&Steering> {
        self.inner.steering()
    }

    fn keeps(&self, head: &[u8]) -> bool {
        self.station.keeps(head, self.desk.vid.network().is_some())
    }

    fn fail(&self, reason: &str) {
        self.inner.fail(reason);
    }
}

/// `deliver` copies each frame at once, or drops it.
impl Receiver for GatewayPort {}

impl UplinkPort for GatewayPort {
    fn service(&self) -> &weir_port_tap::Service {
        self.inner.service()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.descriptors()
    }
}

impl std::fmt::Debug for GatewayPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GatewayPort")
            .field("station", &self.station)
            .field("failure", &self.failure())
            .finish()
    }
}
