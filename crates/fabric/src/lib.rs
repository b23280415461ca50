//! The L2 switch: decides where a frame goes, from its addresses, its tag and its ingress port.
//!
//! The crate copies nothing: no I/O, no rings, no clock (callers pass whole seconds). One frame's way, in
//! [`View::forward`]:
//!
//! 1. [`vlan`]: the ingress port's mode and the tag give the VLAN, or a drop.
//! 2. [`source_guard`]: a guarded port's IP, ARP and neighbour discovery addresses must be its own. [`MacCheck`]:
//!    so must the source MAC address.
//! 3. [`fdb`]: the source is learned, the destination is looked up; a hit is [`Forward::Unicast`], everything else
//!    [`Forward::Flood`].
//! 4. [`multicast`]: where it is on, a flooded frame for a group goes to the group's members.
//! 5. [`routes`]: a worker notes where a frame went, and the next one like it is not looked up.
//! 6. For each receiver, [`View::egress`] tells the frame's tag there. An isolated port does not receive from another
//!    one.
//!
//! A worker takes one [`View`] per burst with [`Fabric::view`]. The port table behind it is an immutable snapshot,
//! exchanged whole by the control calls of [`Fabric`], so the datapath takes a lock only when an address is new or
//! has moved. Each frame that goes nowhere has a [`DropReason`].
#![forbid(unsafe_code)]

mod drop_reason;
mod fabric;
pub mod fdb;
pub mod multicast;
mod port;
pub mod routes;
pub mod source_guard;
mod view;
pub mod vlan;

pub use drop_reason::DropReason;
pub use fabric::{Fabric, Known, PortError, Reach};
pub use fdb::{Capacity, Claim, Fdb, FdbEntry, FdbStats, Learned, Learner, Moves};
pub use multicast::{PortSet, Snooping};
pub use port::MacCheck;
pub use port::{PortConfig, PortId};
pub use routes::Routes;
pub use source_guard::SourceGuard;
pub use view::{Forward, FrameKey, Route, Routed, Thought, View};
pub use vlan::{EgressTag, Vid, VidError, VidSet, VlanMode, VlanSet};
pub use weir_wire::TagProtocol;
