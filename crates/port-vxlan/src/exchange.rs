//! The port sends hosts' questions and answers about latency budgets, and shows what came of them.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use weir_limits::LATENCY_BUDGET_NS_DEFAULT;

use crate::across::{Between, Heard, Here};
use crate::port::VxlanPort;
use crate::rx::OUTBOX;

impl VxlanPort {
    /// Sends other hosts the questions and answers that are due.
    pub fn exchange(&self, here: &Here, now_ns: u64) {
        let socket = self.sockets.senders.first();
        let mut wait_ns = None;
        for peer in self.networks().peers() {
            if let (Some(word), Some(socket)) = (peer.pair.say(here, now_ns), socket) {
                OUTBOX.with_borrow_mut(|outbox| {
                    let mut batch = outbox.batch();
                    let bytes = word.to_bytes();
                    let _ = batch.push(&[&bytes], std::iter::empty(), &[peer.socket], 0, false);
                    // A host that cannot be reached gets no frames either, so the error does not matter.
                    let _ = batch.send(socket.as_fd(), |_, _| ());
                });
            }
            let share_ns = peer.pair.share_ns().unwrap_or(LATENCY_BUDGET_NS_DEFAULT);
            wait_ns = Some(wait_ns.map_or(share_ns, |ns: u64| ns.min(share_ns)));
        }
        self.wait_ns.store(wait_ns.unwrap_or(LATENCY_BUDGET_NS_DEFAULT), Ordering::Relaxed);
    }

    /// The terms between this host and others with a weir that are members of a network.
    pub fn between(&self, network: u16) -> Vec<Between> {
        let networks = self.networks();
        let members = networks.peers().filter(|host| networks.member(network, host.ip).is_some());
        members.filter_map(|host| host.pair.between(host.ip)).collect()
    }

    /// The other hosts that are members of a network.
    pub fn members(&self, network: u16) -> Vec<Heard> {
        let networks = self.networks();
        let members = networks.peers().filter(|host| networks.member(network, host.ip).is_some());
        members.map(|host| host.pair.heard(host.ip)).collect()
    }
}
