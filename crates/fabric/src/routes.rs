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
mod tests {
    use proptest::prelude::*;
    use weir_wire::Mac;

    use super::*;
    use crate::fdb::Learned;
    use crate::{Fabric, Forward, FrameKey, MacCheck, PortConfig, Routed, Vid, VlanMode};

    /// A step of a random run.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// A frame from a port, to an address, from an address.
        Frame(u8, u8, u8),
        /// The worker takes a new view.
        Burst,
        /// A port starts or stops.
        Active(u8, bool),
        /// A port gets the settings with this number.
        Settings(u8, u8),
        /// The port forgets its first address.
        Reset(u8),
        /// An address is forgotten.
        Forget(u8, u8),
        /// This number of seconds passes.
        Pass(u16),
        Age,
    }

    fn step() -> impl Strategy<Value = Step> {
        let port = 0..PORTS;
        prop_oneof![
            12 => (port.clone(), 0..MACS, 0..MACS).prop_map(|(at, to, from)| Step::Frame(at, to, from)),
            6 => Just(Step::Burst),
            1 => (port.clone(), any::<bool>()).prop_map(|(at, on)| Step::Active(at, on)),
            1 => (port.clone(), 0..6_u8).prop_map(|(at, number)| Step::Settings(at, number)),
            1 => port.clone().prop_map(Step::Reset),
            1 => (port, 0..MACS).prop_map(|(at, of)| Step::Forget(at, of)),
            1 => prop_oneof![0..3_u16, 295..305_u16].prop_map(Step::Pass),
            1 => Just(Step::Age),
        ]
    }

    const PORTS: u8 = 3;
    const MACS: u8 = 4;

    fn mac(number: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, number])
    }

    fn settings(number: u8) -> PortConfig {
        let vif = PortConfig::vif();
        match number {
            0 => vif,
            1 => PortConfig { mac_check: MacCheck::Off, ..vif },
            2 => PortConfig { mac_check: MacCheck::Pinned(mac(1)), ..vif },
            3 => PortConfig { vlan: VlanMode::Access(Vid::new(7).unwrap()), ..vif },
            4 => PortConfig { mac_check: MacCheck::Off, isolated: true, ..vif },
            _ => PortConfig { learn_max: 1, ..PortConfig::uplink() },
        }
    }

    fn addresses(dst: Mac, src: Mac) -> Addresses {
        let bytes = [dst.0, src.0].concat();
        let (low, high) = bytes.split_at(8);
        (u64::from_ne_bytes(low.try_into().unwrap()), u32::from_ne_bytes(high.try_into().unwrap()))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn a_noted_route_is_what_a_look_up_would_say_and_nothing_would_be_learned(
            steps in prop::collection::vec(step(), 1..120),
        ) {
            let fabric = Fabric::new();
            let ports: Vec<_> =
                (0..PORTS).map(|_| fabric.add_port(settings(1)).unwrap()).collect();
            for port in &ports {
                fabric.set_active(*port, true).unwrap();
            }
            let (mut routes, mut view, mut now_secs) = (Routes::default(), fabric.view(), 1000);
            for step in steps {
                match step {
                    Step::Frame(at, to, from) => {
                        let (ingress, dst, src) = (ports[usize::from(at)], mac(to), mac(from));
                        let (key, words) = (FrameKey { src, dst, tag: None }, addresses(dst, src));
                        if let Some(route) = routes.find(&view, ingress, words, now_secs) {
                            let thought = view.would_forward(ingress, &key, now_secs);
                            let vid = thought.vid.unwrap();
                            prop_assert_eq!(thought.learned, Some(Learned::Known));
                            prop_assert_eq!(thought.forward, Ok(Forward::Unicast { port: route.port, vid }));
                            prop_assert_eq!(view.egress(route.port, vid, None), Some(route.tag));
                        } else if let Ok(Routed::Unicast { route, known: true }) =
                            view.route(ingress, &key, now_secs)
                        {
                            routes.note(&view, ingress, words, now_secs, route);
                        }
                    }
                    Step::Burst => view = fabric.view(),
                    Step::Active(at, on) => fabric.set_active(ports[usize::from(at)], on).unwrap(),
                    Step::Settings(at, number) => {
                        fabric.update_port(ports[usize::from(at)], settings(number)).unwrap();
                    }
                    Step::Reset(at) => fabric.reset_mac_check(ports[usize::from(at)]).unwrap(),
                    Step::Forget(at, of) => {
                        fabric.fdb().forget(Vid::DEFAULT, mac(of), ports[usize::from(at)]);
                    }
                    Step::Pass(secs) => now_secs += u32::from(secs),
                    Step::Age => _ = fabric.fdb().age(now_secs),
                }
            }
        }
    }

    #[test]
    fn a_route_is_found_again_until_the_second_is_over_or_something_changes() {
        let fabric = Fabric::new();
        let [a, b] = [(); 2].map(|()| {
            let port = fabric.add_port(PortConfig::vif()).unwrap();
            fabric.set_active(port, true).unwrap();
            port
        });
        let key = |dst, src| FrameKey { src: mac(src), dst: mac(dst), tag: None };
        for (port, key) in [(a, key(2, 1)), (b, key(1, 2))] {
            fabric.view().route(port, &key, 5).unwrap();
        }
        let (mut routes, words, view) =
            (Routes::default(), addresses(mac(2), mac(1)), fabric.view());
        let Ok(Routed::Unicast { route, known: true }) = view.route(a, &key(2, 1), 5) else {
            panic!("both are known")
        };
        assert_eq!(routes.find(&view, a, words, 5), None);
        routes.note(&view, a, words, 5, route);
        assert_eq!(
            routes.find(&view, a, words, 5),
            Some(Route { port: b, tag: EgressTag::Untagged })
        );
        assert_eq!(routes.find(&fabric.view(), a, words, 5), Some(route), "by a later view");
        assert_eq!(routes.find(&view, a, words, 6), None, "its addresses' ages count on");
        assert_eq!(routes.find(&view, b, words, 5), None, "it is another port's");
        let same_place = PortId::new(a.get() + PLACES as u16).unwrap();
        assert_eq!(
            routes.find(&view, same_place, words, 5),
            None,
            "nor of one with the same place"
        );
        fabric.add_port(PortConfig::vif()).unwrap();
        assert_eq!(routes.find(&fabric.view(), a, words, 5), None, "a port has come");
        let view = fabric.view();
        routes.note(&view, a, words, 5, route);
        assert_eq!(routes.find(&view, a, words, 5), Some(route));
        fabric.fdb().forget(Vid::DEFAULT, mac(2), b);
        assert_eq!(routes.find(&view, a, words, 5), None);
        assert_eq!(routes.find(&fabric.view(), a, words, 5), None);
    }
}
