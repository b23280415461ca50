//! The routes of frames that a worker has forwarded: the next frame with the same addresses takes the same route.
//!
//! A route is for untagged frames from one port with the same two addresses, whose source was known behind that port.
//! The route holds for the second in which it was noted, so addresses age as they do without routes. It also ends when
//! the forwarding table or a port changes ([`Fdb::changes`]). Within both limits, [`View::route`] would give the same
//! answer, and change nothing.
//!
//! [`Fdb::changes`]: crate::Fdb::changes

use crate::port::PortId;
use crate::view::{Route, View};
use crate::vlan::EgressTag;

/// The number of routes, a power of two. Flows that share a place take it from each other, and their frames are looked
/// up.
const PLACES: usize = 256;

/// One worker's routes.
pub struct Routes(Box<[Noted; PLACES]>);

#[derive(Clone, Copy)]
struct Noted {
    addresses: Addresses,
    ingress: PortId,
    now_secs: u32,
    /// The value of [`Fdb::changes`](crate::Fdb::changes) when the route was noted; 0 means that there is no route.
    changes: u64,
    route: Route,
}

/// The destination and source address of a frame, in two words, in the order of the frame's bytes.
pub type Addresses = (u64, u32);

const NONE: Noted = {
    let Some(port) = PortId::new(0) else { panic!("a switch has ports") };
    let route = Route { port, tag: EgressTag::Untagged };
    Noted { addresses: (0, 0), ingress: port, now_secs: 0, changes: 0, route }
};

impl Default for Routes {
    fn default() -> Self {
        Self(Box::new([NONE; PLACES]))
    }
}

/// The last bytes of both addresses, in which neighbours differ.
#[inline]
fn place((low, high): Addresses, ingress: PortId) -> usize {
    let [dst, src] = [(low >> 40) as usize, (high >> 24) as usize];
    (dst ^ (src * 31) ^ (ingress.index() * 7)) % PLACES
}

impl Routes {
    /// The route of an untagged frame from `ingress`, if one is noted and holds.
    #[inline]
    pub fn find(
        &self,
        view: &View<'_>,
        ingress: PortId,
        addresses: Addresses,
        now_secs: u32,
    ) -> Option<Route> {
        let noted = &self.0[place(addresses, ingress)];
        let is_it = noted.addresses == addresses && noted.ingress == ingress;
        let holds = noted.now_secs == now_secs && noted.changes == view.changes();
        (is_it && holds && view.is_current()).then_some(noted.route)
    }

    /// Notes the answer of [`View::route`] for an untagged frame whose source was known, unless something has changed
    /// since the view was taken.
    pub fn note(
        &mut self,
        view: &View<'_>,
        ingress: PortId,
        addresses: Addresses,
        now_secs: u32,
        route: Route,
    ) {
        if view.is_current() {
            let changes = view.changes();
            self.0[place(addresses, ingress)] =
                Noted { addresses, ingress, now_secs, changes, route };
        }
    }
}

#[cfg(test)]
mod tests;
