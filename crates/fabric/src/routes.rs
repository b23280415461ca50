//! Where frames went that a worker has forwarded: the next one like them goes the same way.
//!
//! A route is of untagged frames from one port with the same two addresses, whose source was known behind that port. It
//! holds for the second in which it was noted, so that addresses age as they do without it, and until the forwarding
//! table or a port changes ([`Fdb::changes`]). Within both, [`View::route`] would say the same, and change nothing.
//!
//! [`Fdb::changes`]: crate::Fdb::changes

use crate::port::PortId;
use crate::view::{Route, View};
use crate::vlan::EgressTag;

/// A power of two. Flows that meet in one place take it from each other, and each frame is looked up anew.
const PLACES: usize = 256;

/// A worker's.
pub struct Routes(Box<[Noted; PLACES]>);

#[derive(Clone, Copy)]
struct Noted {
    addresses: Addresses,
    ingress: PortId,
    now_secs: u32,
    /// 0: none.
    changes: u64,
    route: Route,
}

/// Destination and source address of a frame, as they stand in it, in two words.
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
    /// Where an untagged frame from `ingress` goes, if that is noted and holds.
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

    /// Notes what [`View::route`] has said of an untagged frame whose source was known, unless something has changed
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
