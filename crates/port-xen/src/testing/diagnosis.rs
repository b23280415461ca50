//! The state of a switch after a test has waited in vain: it shows missed wake-ups and drops.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, Weak};

use weir_engine::guest::GuestPort;
use weir_engine::{Engine, lock};
use weir_xen::vif::VifId;

use super::bench::PortMap;
use crate::XenPort;

type WeakPorts = Weak<Mutex<BTreeMap<VifId, Arc<XenPort>>>>;

thread_local! {
    /// The engine that this thread has started last.
    static LAST: RefCell<(Weak<Engine>, WeakPorts)> = RefCell::default();
}

/// Makes `engine` the subject of [`text`].
pub(super) fn remember(engine: &Arc<Engine>, ports: &PortMap) {
    LAST.set((Arc::downgrade(engine), Arc::downgrade(ports)));
}

/// Describes workers, rings and drops.
pub(super) fn text() -> String {
    let mut text = String::new();
    let (engine, ports) = LAST.with_borrow(|(engine, ports)| (engine.upgrade(), ports.upgrade()));
    if let (Some(engine), Some(ports)) = (engine, ports) {
        // Writing to a string cannot fail.
        let _ = write_all(&mut text, &engine, &ports);
    }
    text
}

fn write_all(text: &mut String, engine: &Engine, ports: &PortMap) -> fmt::Result {
    writeln!(text, "{:?}", engine.workers())?;
    for port in lock(ports).values() {
        writeln!(text, "{port:?}, {:?}", port.info().state)?;
        let counters = port.counters();
        for (queue, pair) in port.guest.pairs().enumerate() {
            let worker = engine.worker_of(port.id(), queue);
            let [tx, rx] = [&counters.tx, &counters.rx].map(|of| of.get(queue));
            let counts = [tx, rx].map(|of| of.map(|of| (of.kicks.get(), of.frames.get())));
            writeln!(text, "  queue {queue} of worker {worker:?}, (kicks, frames) {counts:?}")?;
            // A lock that is held for ever may be the fault in question, so it is not waited for.
            writeln!(text, "    {:?}\n    {:?}", pair.tx, pair.rx)?;
        }
        let parked = counters.parked.get();
        let drops: Vec<_> = counters.drops().filter(|(_, count)| *count > 0).collect();
        writeln!(text, "  parked {parked}, dropped {drops:?}")?;
    }
    Ok(())
}
