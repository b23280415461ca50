//! A front end that writes arbitrary values wherever a guest can write: ring pages, requests, keys
//! of xenstore. [`attack`] is a property, for a fuzzer and for tests with random input.

use std::sync::Arc;
use weir_engine::guest::GuestPort;

use weir_guestmem::MappedPages;
use weir_limits::XEN_PAGE_LEN;
use weir_xen::vif::XenbusState;
use weir_xen::{DomainId, EventChannel, GrantRef};

use super::bench::{Bench, eventually, frame, vif};
use super::{CTRL_PAGES, Connect, Netfront, PAGES, QUEUES_MAX};

/// The attacker, and two guests that it must not harm.
const ATTACKER: u16 = 1;
const OTHERS: [u16; 2] = [2, 3];
/// Steps of one attack.
const STEPS_MAX: usize = 256;
/// A page that is never shared, and its content.
const PRIVATE_PAGE: u64 = PAGES - 3;
const PRIVATE: [u8; 8] = *b"not ours";

/// Keys of a front end's directory that a back end reads.
const KEYS: [&str; 17] = [
    "tx-ring-ref",
    "rx-ring-ref",
    "event-channel-tx",
    "event-channel-rx",
    "event-channel",
    "queue-0/tx-ring-ref",
    "queue-1/event-channel-rx",
    "multi-queue-num-queues",
    "ctrl-ring-ref",
    "event-channel-ctrl",
    "request-rx-copy",
    "feature-sg",
    "feature-gso-tcpv4",
    "feature-no-csum-offload",
    "request-multicast-control",
    "feature-rx-notify",
    "state",
];

/// The rest of the input; zeros after its end.
struct Script<'i>(&'i [u8]);

impl Script<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            if let Some((first, rest)) = self.0.split_first() {
                (*byte, self.0) = (*first, rest);
            }
        }
        bytes
    }

    fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::from(u16::from_le_bytes(self.bytes())) % limit.max(1)
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    /// Reads a number, which is small half of the time.
    fn number(&mut self) -> u32 {
        let byte = self.byte();
        if byte & 1 == 0 { u32::from(byte / 2) } else { self.word() }
    }
}

/// One of the attacker's rings, written without regard to its content.
struct RawRing {
    page: Arc<MappedPages>,
    slot_len: usize,
    req_prod: u32,
    events: usize,
}

/// Words of a ring's page (`public/io/ring.h`).
const REQ_PROD: usize = 0;
const RSP_PROD: usize = 8;
const ENTRIES: usize = 64;

impl RawRing {
    fn size(&self) -> u32 {
        let entries = ((XEN_PAGE_LEN - ENTRIES) / self.slot_len) as u32;
        1 << entries.ilog2()
    }

    /// Writes a request where a driver would, and publishes it.
    fn request(&mut self, bytes: &[u8]) {
        let behind = self.req_prod.wrapping_sub(self.page.load_acquire(RSP_PROD));
        if behind >= self.size() {
            return;
        }
        let at = ENTRIES + (self.req_prod % self.size()) as usize * self.slot_len;
        self.write(at, bytes);
        self.req_prod = self.req_prod.wrapping_add(1);
        self.page.store_release(REQ_PROD, self.req_prod);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let len = bytes.len().min(XEN_PAGE_LEN - at);
        self.page.slice(at, len).expect("in the page").write(&bytes[..len]);
    }
}

struct Attacker {
    front: Netfront,
    rings: Vec<RawRing>,
    channels: Vec<Box<dyn EventChannel>>,
}

impl Attacker {
    /// Takes a driver's rings and channels.
    fn new(mut front: Netfront) -> Self {
        let (mut rings, mut channels) = (Vec::new(), Vec::new());
        for (nth, queue) in front.queues.drain(..).enumerate() {
            let base = nth as u64 * (2 + 2 * super::BUFFERS);
            channels.push(queue.tx_events);
            let tx_events = channels.len() - 1;
            channels.extend(queue.rx_events);
            for (page, slot_len, req_prod, events) in
                [(base, 12, 0, tx_events), (base + 1, 8, super::BUFFERS as u32, channels.len() - 1)]
            {
                let page = Arc::new(front.guest.page(page).expect("a page"));
                rings.push(RawRing { page, slot_len, req_prod, events });
            }
        }
        if let Some(ctrl) = front.ctrl.take() {
            channels.push(ctrl.events);
            let page = Arc::new(front.guest.page(CTRL_PAGES[0]).expect("a page"));
            rings.push(RawRing { page, slot_len: 16, req_prod: 0, events: channels.len() - 1 });
        }
        Self { front, rings, channels }
    }

    fn notify(&self, channel: usize) {
        // The other end may have been closed.
        let _ = self.channels[channel].notify();
    }

    /// Returns one of the attacker's own grants, or any number.
    fn reference(&self, script: &mut Script<'_>) -> u32 {
        match script.byte() {
            0..32 => script.number(),
            _ => self.front.granted[script.below(self.front.granted.len())].0,
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let ring = script.below(self.rings.len());
        let reference = self.reference(script);
        let pick = script.byte() % 12;
        match (pick, self.rings[ring].slot_len) {
            // Requests of the ring's kind, now and then with a good and a bad field each.
            (0..=4, 12) => {
                let [offset, size] = [script.number() as u16, script.number() as u16];
                let flags = u16::from(script.byte() & 0x1f);
                let words = [u16::from(script.byte()), size].map(u16::to_le_bytes);
                let mut bytes = reference.to_le_bytes().to_vec();
                bytes.extend(offset.to_le_bytes().iter().chain(&flags.to_le_bytes()));
                bytes.extend(words.iter().flatten());
                self.rings[ring].request(&bytes);
            }
            (0..=4, 8) => {
                let mut bytes = [script.byte(), 0, 0, 0].to_vec();
                bytes.extend(reference.to_le_bytes());
                self.rings[ring].request(&bytes);
            }
            (0..=4, _) => {
                let kind = u16::from(script.byte() % 10);
                let mut bytes = [1, 0].to_vec();
                bytes.extend(kind.to_le_bytes());
                let first = if kind == 3 || kind == 6 { reference } else { script.number() };
                for word in [first, script.number(), script.number()] {
                    bytes.extend(word.to_le_bytes());
                }
                self.rings[ring].request(&bytes);
            }
            // An extra info, or any entry.
            (5, 12) => {
                let kind = script.byte() % 7;
                let flags = script.byte() & 1;
                let body = script.bytes::<6>();
                self.rings[ring].request(&[&[kind, flags][..], &body].concat());
            }
            (5 | 6, _) => {
                let bytes = script.bytes::<16>();
                let len = self.rings[ring].slot_len;
                self.rings[ring].request(&bytes[..len]);
            }
            (7, _) => {
                let at = script.below(XEN_PAGE_LEN);
                let bytes = script.bytes::<8>();
                self.rings[ring].write(at, &bytes);
            }
            (8, _) => {
                let at = script.below(4) * 4;
                let value = self.rings[ring].page.load_acquire(at).wrapping_add(script.number());
                self.rings[ring].page.store_release(at, value);
            }
            (9, _) => {
                self.front.guest.revoke(GrantRef(reference));
            }
            (10, _) => self.key(script),
            _ => {}
        }
        self.notify(self.rings[ring].events);
    }

    /// Writes any value to a key.
    fn key(&mut self, script: &mut Script<'_>) {
        let key = KEYS[script.below(KEYS.len())];
        match script.byte() % 3 {
            0 => self.front.set(key, &script.number().to_string()),
            1 => self.front.set(key, &(script.byte() % 10).to_string()),
            _ => self.front.set(key, &String::from_utf8_lossy(&script.bytes::<12>())),
        }
    }
}

/// Runs the attack that `input` encodes, and checks what must hold against any guest:
/// - no thread of weir's ends, and no port stops for a fault of weir's own,
/// - two other guests continue,
/// - memory that was not granted stays as it is,
/// - nothing is mapped or bound when the vif is removed.
///
/// # Panics
/// If one of these does not hold.
pub fn attack(input: &[u8]) {
    let mut script = Script(input);
    let bench = Bench::new();
    let how = Connect { ctrl: true, ..Connect::default() };
    let mut others = OTHERS.map(|domain| bench.guest(domain, how));
    let before = (bench.host.mapped(), bench.host.bound());

    let mut front = bench.attached(ATTACKER);
    let private = front.guest.page(PRIVATE_PAGE).expect("a page");
    private.slice(0, PRIVATE.len()).expect("in the page").write(&PRIVATE);
    let waits = || front.back_state() == Some(XenbusState::InitWait);
    eventually("weir has said what it can do", waits);
    let [first, second] = script.bytes();
    let bit = |number: u8| first >> number & 1 != 0;
    front.prepare(Connect {
        queues: 1 + u64::from(first % 2),
        split: bit(1),
        sg: bit(2),
        multicast: bit(3),
        ctrl: bit(4),
    });
    let mut attacker = Attacker::new(front);
    // Half of the inputs write no key here.
    for _ in 4..(second % 8).max(4) {
        attacker.key(&mut script);
    }
    attacker.front.state(XenbusState::Connected);
    // A closed back end that has already seen a state that ends a vif needs a new start.
    let answered = |state| {
        use XenbusState::{Closed, Closing, Connected};
        matches!(state, Some(Connected | Closing | Closed))
    };
    if bit(5) {
        // In the other cases the attacker writes while weir connects.
        eventually("weir has an opinion", || answered(attacker.front.back_state()));
    }
    for nth in 0..STEPS_MAX {
        if script.0.is_empty() {
            break;
        }
        attacker.step(&mut script);
        if nth % 16 == 0 {
            let [one, _] = &mut others;
            one.send(0, &frame(OTHERS[0], ATTACKER, &[nth as u8; 600]));
            one.send(0, &frame(OTHERS[0], 0xff, b"to nobody that is known"));
        }
    }

    others_go_on(&mut others);
    let reason = bench.port(ATTACKER).info().stop_reason.unwrap_or_default();
    assert!(!reason.contains("internal error"), "{reason}");
    detach(&bench, &mut attacker.front);
    assert_eq!((bench.host.mapped(), bench.host.bound()), before, "of the others");
    let mut now = PRIVATE;
    private.slice(0, now.len()).expect("in the page").read(&mut now);
    assert_eq!(now, PRIVATE, "a page that nobody was given");
    drop(attacker.channels);
    others_go_on(&mut others);
}

/// Asserts that each of the two guests can send to the other.
fn others_go_on(others: &mut [Netfront; 2]) {
    for (from, to) in [(0, 1), (1, 0)] {
        let sent = frame(OTHERS[from], OTHERS[to], b"still here");
        eventually("what others send arrives", || {
            others[from].send(0, &sent);
            std::iter::from_fn(|| others[to].receive(0)).any(|got| got.frame == sent)
        });
    }
}

/// Detaches the vif as the toolstack does.
fn detach(bench: &Bench, front: &mut Netfront) {
    let domain = DomainId(ATTACKER);
    bench.host.ask_to_detach(domain, vif(ATTACKER).handle);
    front.state(XenbusState::Closed);
    eventually("weir has let go", || front.back_state() == Some(XenbusState::Closed));
    bench.host.remove(domain, vif(ATTACKER).handle);
    let gone = || !bench.ports.lock().is_ok_and(|ports| ports.contains_key(&vif(ATTACKER)));
    eventually("the port is gone", gone);
}

const _: () = assert!(QUEUES_MAX > 2 && PRIVATE_PAGE >= 2 * (2 + 2 * super::BUFFERS));
