//! The decision for one frame, on the ports as they were at the start of a burst.

use std::cell::OnceCell;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use weir_wire::{Mac, TagProtocol, Tci};

use crate::DropReason;
use crate::fabric::PortTable;
use crate::fdb::{Claim, Fdb, Learned, Learner};
use crate::port;
use crate::port::PortId;
use crate::vlan::{EgressTag, Vid, VlanMode};

/// The parts of a frame that the fabric needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameKey {
    /// Source address.
    pub src: Mac,
    /// Destination address.
    pub dst: Mac,
    /// The 802.1Q tag, if there is one.
    pub tag: Option<Tci>,
}

/// The destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// The frame goes to one port, which is active, a member of the VLAN, not the ingress port, and
    /// not isolated from it.
    Unicast {
        /// The port.
        port: PortId,
        /// The frame's VLAN.
        vid: Vid,
    },
    /// The frame goes to every other port in the VLAN ([`View::flood_ports`]): it is multicast,
    /// broadcast, or for an unknown address.
    Flood {
        /// The frame's VLAN.
        vid: Vid,
    },
}

/// The answer of [`View::route`] for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routed {
    /// The frame goes to one port.
    Unicast {
        /// The way to that port.
        route: Route,
        /// The source was known behind its port: this frame has changed nothing.
        known: bool,
    },
    /// The frame goes to every other port in the VLAN.
    Flood {
        /// The frame's VLAN.
        vid: Vid,
    },
}

/// The way to one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The port.
    pub port: PortId,
    /// The frame's tag there.
    pub tag: EgressTag,
}

/// The answer of [`View::would_forward`] for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thought {
    /// The frame's VLAN, if it has one.
    pub vid: Option<Vid>,
    /// The result of learning the frame's source address.
    pub learned: Option<Learned>,
    /// The destination, or the reason for a drop.
    pub forward: Result<Forward, DropReason>,
}

/// The switch for the length of a burst; see [`Fabric::view`](crate::Fabric::view).
pub struct View<'a> {
    fdb: &'a Fdb,
    table: &'a ArcSwap<PortTable>,
    /// The ports, as they were when a frame of the burst first needed them. A burst with noted
    /// [routes](crate::Routes) never does.
    ports: OnceCell<Guard<Arc<PortTable>>>,
    /// [`Fdb::changes`] before `ports` was loaded.
    changes: u64,
}

impl<'a> View<'a> {
    #[inline]
    pub(crate) fn new(fdb: &'a Fdb, table: &'a ArcSwap<PortTable>) -> Self {
        // The number is read before the ports: a result found with these ports is then at least as new as the number.
        Self { fdb, table, ports: OnceCell::new(), changes: fdb.changes() }
    }

    fn ports(&self) -> &PortTable {
        self.ports.get_or_init(|| self.table.load())
    }

    /// The number of the state of ports and forwarding table that the view shows. It only grows.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// True if nothing has changed since the view was taken.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.fdb.changes() == self.changes
    }

    /// Decides where a frame that came in by `ingress` goes, and learns its source address.
    ///
    /// `now_secs` is from a monotonic clock of whole seconds.
    ///
    /// # Errors
    /// The reason why the frame has to be dropped. Nothing is learned from a frame that is dropped for its VLAN, for
    /// its source, or as link-local.
    pub fn forward(
        &self,
        ingress: PortId,
        frame: &FrameKey,
        now_secs: u32,
    ) -> Result<Forward, DropReason> {
        let (vid, _) = self.admit(ingress, frame, now_secs)?;
        self.forward_in(vid, ingress, frame, now_secs)
    }

    /// As [`forward`](Self::forward), and also tells how a frame for one port leaves there, and whether the source was
    /// known.
    ///
    /// # Errors
    /// The errors of [`forward`](Self::forward).
    pub fn route(
        &self,
        ingress: PortId,
        frame: &FrameKey,
        now_secs: u32,
    ) -> Result<Routed, DropReason> {
        let (vid, known) = self.admit(ingress, frame, now_secs)?;
        Ok(match self.look_up(ingress, vid, frame, now_secs)? {
            Some(route) => Routed::Unicast { route, known },
            None => Routed::Flood { vid },
        })
    }

    /// Learns the source address of a frame that the port may send. Returns the frame's VLAN, and whether the address was
    /// known.
    fn admit(
        &self,
        ingress: PortId,
        frame: &FrameKey,
        now_secs: u32,
    ) -> Result<(Vid, bool), DropReason> {
        let port = self.ports().port(ingress).ok_or(DropReason::PortUnknown)?;
        if !port.active {
            return Err(port.refuse(frame));
        }
        let config = &port.config;
        let vid = config.ingress(frame.tag)?;
        let claim = match port::check(config.mac_check, &port.first_mac, frame.src)? {
            Claim::Dynamic if config.uplink => Claim::Uplink,
            claim => claim,
        };
        if is_reserved_group(frame.dst) {
            return Err(DropReason::ReservedGroupAddress);
        }
        let learner = Learner { port: ingress, claim, learn_max: config.learn_max };
        Ok((vid, self.learn(vid, frame.src, learner, now_secs)?))
    }

    /// The way of a frame of `vid`; `None` if it goes to every other port.
    #[inline(always)]
    fn look_up(
        &self,
        ingress: PortId,
        vid: Vid,
        frame: &FrameKey,
        now_secs: u32,
    ) -> Result<Option<Route>, DropReason> {
        if frame.dst.is_multicast() {
            return Ok(None);
        }
        let Some(port) = self.fdb.lookup(vid, frame.dst, now_secs) else { return Ok(None) };
        if port == ingress {
            return Err(DropReason::Hairpin);
        }
        let Some(receiver) = self.ports().active_port(port) else { return Ok(None) };
        let Some(tag) = receiver.config.vlan.egress(vid, frame.tag) else { return Ok(None) };
        if receiver.config.isolated && self.ports().is_isolated(ingress) {
            return Err(DropReason::Isolated);
        }
        Ok(Some(Route { port, tag }))
    }

    fn forward_in(
        &self,
        vid: Vid,
        ingress: PortId,
        frame: &FrameKey,
        now_secs: u32,
    ) -> Result<Forward, DropReason> {
        Ok(match self.look_up(ingress, vid, frame, now_secs)? {
            Some(Route { port, .. }) => Forward::Unicast { port, vid },
            None => Forward::Flood { vid },
        })
    }

    /// The decision of [`forward`](Self::forward) and what it would learn, without any change, to explain a frame's
    /// way. `learned` is `None` if the frame is dropped before.
    pub fn would_forward(&self, ingress: PortId, frame: &FrameKey, now_secs: u32) -> Thought {
        let mut thought =
            Thought { vid: None, learned: None, forward: Err(DropReason::PortUnknown) };
        thought.forward = self.think(ingress, frame, now_secs, &mut thought);
        thought
    }

    fn think(
        &self,
        ingress: PortId,
        frame: &FrameKey,
        now_secs: u32,
        thought: &mut Thought,
    ) -> Result<Forward, DropReason> {
        let port = self.ports().port(ingress).ok_or(DropReason::PortUnknown)?;
        if !port.active {
            return Err(port.refusal());
        }
        let config = &port.config;
        let vid = config.ingress(frame.tag)?;
        thought.vid = Some(vid);
        let claim = match port::would_check(config.mac_check, &port.first_mac, frame.src)? {
            Claim::Dynamic if config.uplink => Claim::Uplink,
            claim => claim,
        };
        if is_reserved_group(frame.dst) {
            return Err(DropReason::ReservedGroupAddress);
        }
        let learner = Learner { port: ingress, claim, learn_max: config.learn_max };
        let learned = self.fdb.would_learn(vid, frame.src, learner, now_secs);
        thought.learned = Some(learned);
        match learned {
            Learned::Owned { by } if self.is_member(by, vid) => Err(DropReason::SrcMacOwned),
            // The address would be behind this port by then.
            Learned::PortLimit | Learned::NetworkLimit | Learned::BucketFull | Learned::Told => {
                self.forward_in(vid, ingress, frame, now_secs)
            }
            _ if frame.dst == frame.src => Err(DropReason::Hairpin),
            _ => self.forward_in(vid, ingress, frame, now_secs),
        }
    }

    /// The kind of tags that are a port's own.
    #[inline]
    pub fn tags(&self, port: PortId) -> TagProtocol {
        self.ports().port(port).map_or_else(TagProtocol::default, |port| port.config.tags)
    }

    /// True if a frame that begins with this tag, behind the tag already taken off, may come in by
    /// `ingress`. A station behind an access port knows of no tags, except a customer's if the
    /// port's own tags are a provider's.
    pub fn takes_still_tagged(&self, ingress: PortId, tag: TagProtocol) -> bool {
        let Some(port) = self.ports().port(ingress) else { return false };
        !matches!(port.config.vlan, VlanMode::Access(_)) || !port.config.mistakes(tag)
    }

    /// True if a frame that begins with this tag, behind the tag already taken off, may leave by
    /// `egress` in this way.
    pub fn gives_still_tagged(&self, egress: PortId, way: EgressTag, tag: TagProtocol) -> bool {
        way != EgressTag::Untagged
            || self.ports().port(egress).is_some_and(|port| !port.config.mistakes(tag))
    }

    /// The number of the overlay network that a port is in, if it is in one.
    pub fn network_of(&self, port: PortId) -> Option<u16> {
        match self.ports().port(port)?.config.vlan {
            VlanMode::Access(vid) => vid.network(),
            _ => None,
        }
    }

    /// The ports that a flooded frame for `dst` goes to, in ascending order: active, in the VLAN, not `ingress`, and
    /// not isolated from it. A frame for one station does not go to a guest that is held to a different address.
    pub fn flood_ports(&self, ingress: PortId, vid: Vid, dst: Mac) -> impl Iterator<Item = PortId> {
        let ports = self.ports().heard_by(ingress).iter().copied();
        ports.filter(move |&port| port != ingress).filter(move |&port| {
            self.ports().port(port).is_some_and(|port| {
                port.config.vlan.is_member(vid)
                    && (dst.is_multicast() || port.only_mac().is_none_or(|only| only == dst))
            })
        })
    }

    /// The egress tag of a frame of `vid` that came in with `tag` and leaves by `port`; `None` if the port does not
    /// exist, is not active, or is not in the VLAN.
    pub fn egress(&self, port: PortId, vid: Vid, tag: Option<Tci>) -> Option<EgressTag> {
        self.ports().active_port(port)?.config.egress(vid, tag)
    }

    /// True if a multicast router is, or may be, behind the port.
    pub(crate) fn routes_multicast(&self, port: PortId) -> bool {
        self.ports().port(port).is_some_and(|port| port.config.multicast_router)
    }

    /// True if the port may have one address only.
    pub(crate) fn has_one_station(&self, port: PortId) -> bool {
        self.ports().port(port).is_some_and(|port| port.only_mac().is_some())
    }

    /// True if the port is isolated from other isolated ports.
    pub fn is_isolated(&self, port: PortId) -> bool {
        self.ports().is_isolated(port)
    }

    fn is_member(&self, port: PortId, vid: Vid) -> bool {
        self.ports().active_port(port).is_some_and(|port| port.config.vlan.is_member(vid))
    }

    /// Learns the source address, and tells whether it was known behind the port.
    fn learn(
        &self,
        vid: Vid,
        src: Mac,
        learner: Learner,
        now_secs: u32,
    ) -> Result<bool, DropReason> {
        match self.fdb.learn(vid, src, learner, now_secs) {
            Learned::Known => Ok(true),
            Learned::Owned { by } if self.is_member(by, vid) => Err(DropReason::SrcMacOwned),
            Learned::Owned { by } => {
                // The entry was left behind by a burst that was under way when `by` changed.
                self.fdb.forget(vid, src, by);
                self.fdb.learn(vid, src, learner, now_secs);
                Ok(false)
            }
            Learned::PortLimit | Learned::NetworkLimit | Learned::BucketFull => {
                self.look_at_unlearned(vid, src, learner.port);
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Checks for a probe when the table has no room for this source address.
    #[cold]
    fn look_at_unlearned(&self, vid: Vid, src: Mac, port: PortId) {
        if let Some(port) = self.ports().port(port) {
            port.sought.look_at(vid, src);
        }
    }
}

/// 01:80:c2:00:00:00 to 0f (802.1Q table 8-1): spanning tree, pause, LACP, LLDP, ... A bridge that
/// forwarded them would join what they keep apart.
fn is_reserved_group(mac: Mac) -> bool {
    let [prefix @ .., last] = mac.0;
    prefix == [0x01, 0x80, 0xc2, 0x00, 0x00] && last <= 0x0f
}
