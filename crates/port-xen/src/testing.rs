//! A guest's driver on the simulated Xen (`weir_xen::testing`). It behaves like Linux's netfront, as far as a back end
//! can see. It is for tests of this crate and its users.

pub mod bench;
pub mod hostile;

use std::sync::Arc;

use weir_guestmem::{MappedPages, Window};
use weir_limits::XEN_PAGE_LEN;
use weir_netif::message::{Extra, RxRequest};
use weir_netif::{
    CTRL_SLOT_BYTES, CtrlRequest, CtrlResponse, FrontRing, RxFront, RxPacket, Segment, TxFront,
    TxResponse,
};
use weir_xen::store::Client;
use weir_xen::testing::{Connection, Guest, Host};
use weir_xen::vif::{VifId, XenbusState};
use weir_xen::{DomainId, EventChannel, GrantRef};

/// Pages of each queue for frames in one direction.
pub const BUFFERS: u64 = 64;
/// Largest number of queues.
pub const QUEUES_MAX: u64 = 4;
/// Page of the control ring, and page for keys and tables.
pub const CTRL_PAGES: [u64; 2] =
    [QUEUES_MAX * (2 + 2 * BUFFERS), QUEUES_MAX * (2 + 2 * BUFFERS) + 1];
/// Number of a guest's pages: rings and buffers.
pub const PAGES: u64 = CTRL_PAGES[1] + 1;
/// The back end's domain.
const DOM0: DomainId = DomainId(0);

/// Features of a driver's connection.
#[derive(Debug, Clone, Copy)]
pub struct Connect {
    /// Queues, at most [`QUEUES_MAX`].
    pub queues: u64,
    /// A channel for each ring of a queue.
    pub split: bool,
    /// Packets of several pages, and uncut TCP segments.
    pub sg: bool,
    /// The driver names its multicast groups.
    pub multicast: bool,
    /// The driver has a control ring.
    pub ctrl: bool,
}

impl Default for Connect {
    fn default() -> Self {
        Self { queues: 1, split: true, sg: true, multicast: false, ctrl: false }
    }
}

/// One queue.
pub struct Queue {
    /// The transmit ring.
    pub tx: TxFront,
    /// The receive ring.
    pub rx: RxFront,
    /// Event channel of `tx`.
    pub tx_events: Box<dyn EventChannel>,
    /// Event channel of `rx`, if it has its own.
    pub rx_events: Option<Box<dyn EventChannel>>,
    tx_pages: Vec<(u64, GrantRef)>,
    rx_pages: Vec<(u64, GrantRef)>,
    /// Index of the next page in `tx_pages`.
    next: usize,
    /// Transmit pages of unanswered requests.
    busy: Vec<bool>,
    /// Answers that were taken to free their pages, and not returned yet.
    answered: Vec<TxResponse>,
}

/// A control ring.
pub struct Ctrl {
    /// The ring.
    pub ring: FrontRing<CTRL_SLOT_BYTES>,
    /// The event channel.
    pub events: Box<dyn EventChannel>,
    /// Reference of the page for keys and tables.
    pub page: GrantRef,
}

/// A driver.
pub struct Netfront {
    /// The driver's guest.
    pub guest: Guest,
    vif: VifId,
    client: Client<Connection>,
    /// The queues of a connected driver.
    pub queues: Vec<Queue>,
    /// The control ring of a connected driver, if it has one.
    pub ctrl: Option<Ctrl>,
    /// All granted pages.
    pub granted: Vec<GrantRef>,
}

/// A received packet.
#[derive(Debug, Clone)]
pub struct Received {
    /// The packet's bytes.
    pub frame: Vec<u8>,
    /// The back end's metadata.
    pub packet: RxPacket,
}

impl Netfront {
    /// Makes a guest and the driver of its vif.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn new(host: &Host, vif: VifId) -> Self {
        let guest = host.guest(vif.domain, PAGES).expect("memory");
        let client = guest.client();
        Self { guest, vif, client, queues: Vec::new(), ctrl: None, granted: Vec::new() }
    }

    /// Writes a key of the front end's directory.
    ///
    /// # Panics
    /// If xenstore refuses it.
    pub fn set(&mut self, key: &str, value: &str) {
        let path = format!("device/vif/{}/{key}", self.vif.handle);
        self.client.write(&path, value.as_bytes()).expect("a guest may write there");
    }

    /// Publishes a state.
    pub fn state(&mut self, state: XenbusState) {
        self.set("state", std::str::from_utf8(&state.to_value()).expect("a digit"));
    }

    /// Reads the back end's state, if there is one.
    ///
    /// # Panics
    /// If xenstore refuses it.
    pub fn back_state(&mut self) -> Option<XenbusState> {
        let VifId { domain, handle } = self.vif;
        let path = format!("/local/domain/0/backend/vif/{}/{handle}/state", domain.0);
        let value = self.client.read(&path).expect("a guest may read it");
        value.and_then(|value| XenbusState::parse(&value))
    }

    fn page(&self, page: u64) -> Arc<MappedPages> {
        Arc::new(self.guest.page(page).expect("a page of the guest"))
    }

    fn grant(&mut self, page: u64, read_only: bool) -> GrantRef {
        let reference = self.guest.grant(page, DOM0, read_only);
        self.granted.push(reference);
        reference
    }

    /// Makes rings, offers all buffers and announces them in xenstore. The back end must be ready.
    ///
    /// # Panics
    /// If the simulated Xen refuses a driver's request.
    pub fn connect(&mut self, how: Connect) {
        self.prepare(how);
        self.state(XenbusState::Connected);
    }

    /// Does all of [`connect`](Self::connect) except the state, which would start the back end.
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    pub fn prepare(&mut self, how: Connect) {
        assert!(how.queues <= QUEUES_MAX && self.queues.is_empty());
        self.set("multi-queue-num-queues", &how.queues.to_string());
        for n in 0..how.queues {
            let prefix = if how.queues > 1 { format!("queue-{n}/") } else { String::new() };
            self.queue(n, &prefix, how.split);
        }
        if how.ctrl {
            self.control();
        }
        let flag = |on: bool| if on { "1" } else { "0" };
        for (key, value) in [
            ("request-rx-copy", "1"),
            ("feature-rx-notify", "1"),
            ("feature-sg", flag(how.sg)),
            ("feature-gso-tcpv4", flag(how.sg)),
            ("feature-gso-tcpv6", flag(how.sg)),
            ("feature-ipv6-csum-offload", "1"),
            ("request-multicast-control", flag(how.multicast)),
        ] {
            self.set(key, value);
        }
    }

    fn control(&mut self) {
        let [ring_page, data_page] = CTRL_PAGES;
        let ring = FrontRing::init(Window::over(self.page(ring_page))).expect("a page");
        let reference = self.grant(ring_page, false);
        let page = self.grant(data_page, true);
        let (port, events) = self.guest.allocate(DOM0).expect("a channel");
        self.set("ctrl-ring-ref", &reference.0.to_string());
        self.set("event-channel-ctrl", &port.0.to_string());
        self.ctrl = Some(Ctrl { ring, events, page });
    }

    /// Writes a request of type `kind`, with `bytes` in the page for keys and tables. For a request
    /// with a page, the first word becomes this page's reference.
    ///
    /// # Panics
    /// If there is no control ring, or no room.
    pub fn ask(&mut self, kind: u16, data: [u32; 3], bytes: &[u8]) {
        let at = CTRL_PAGES[1] as usize * XEN_PAGE_LEN;
        self.guest.memory().slice(at, bytes.len()).expect("in the page").write(bytes);
        let ctrl = self.ctrl.as_mut().expect("a control ring");
        ctrl.ring.request(CtrlRequest { id: kind, kind, data }.to_bytes()).expect("room");
        if ctrl.ring.push() {
            ctrl.events.notify().expect("a channel");
        }
    }

    /// Takes the next answer, if there is one.
    ///
    /// # Panics
    /// If the back end broke the ring.
    pub fn answer(&mut self) -> Option<CtrlResponse> {
        let ring = &mut self.ctrl.as_mut()?.ring;
        if ring.available() == 0 {
            ring.final_check().expect("responses");
        }
        let (_, bytes) = ring.response()?;
        Some(CtrlResponse::from_bytes(&bytes).expect("a status that exists"))
    }

    fn queue(&mut self, n: u64, prefix: &str, split: bool) {
        let base = n * (2 + 2 * BUFFERS);
        let tx = TxFront::init(Window::over(self.page(base))).expect("a page");
        let rx = RxFront::init(Window::over(self.page(base + 1))).expect("a page");
        let tx_ref = self.grant(base, false);
        let rx_ref = self.grant(base + 1, false);
        self.set(&format!("{prefix}tx-ring-ref"), &tx_ref.0.to_string());
        self.set(&format!("{prefix}rx-ring-ref"), &rx_ref.0.to_string());
        let (port, tx_events) = self.guest.allocate(DOM0).expect("a channel");
        let rx_events = if split {
            self.set(&format!("{prefix}event-channel-tx"), &port.0.to_string());
            let (port, events) = self.guest.allocate(DOM0).expect("a channel");
            self.set(&format!("{prefix}event-channel-rx"), &port.0.to_string());
            Some(events)
        } else {
            self.set(&format!("{prefix}event-channel"), &port.0.to_string());
            None
        };
        let tx_pages = (0..BUFFERS).map(|i| base + 2 + i);
        let tx_pages = tx_pages.map(|page| (page, self.grant(page, true))).collect();
        let rx_pages = (0..BUFFERS).map(|i| base + 2 + BUFFERS + i);
        let rx_pages = rx_pages.map(|page| (page, self.grant(page, false))).collect();
        let busy = vec![false; BUFFERS as usize];
        let (next, answered) = (0, Vec::new());
        let mut queue =
            Queue { tx, rx, tx_events, rx_events, tx_pages, rx_pages, next, busy, answered };
        for id in 0..queue.rx_pages.len() {
            queue.offer(id as u16);
        }
        queue.rx.ring().push();
        self.queues.push(queue);
    }

    /// Sends a frame of one queue, a slot for each `slot_len` bytes, with flags and extra infos.
    /// Returns `false` without room. Reuses the pages of answered requests.
    ///
    /// # Panics
    /// If the back end broke the ring.
    pub fn send_slots(
        &mut self,
        queue: usize,
        frame: &[u8],
        slot_len: usize,
        flags: u16,
        extras: &[Extra],
    ) -> bool {
        let memory = self.guest.memory();
        let queue = &mut self.queues[queue];
        queue.reclaim();
        let needed = queue.next..queue.next + frame.len().div_ceil(slot_len);
        if needed.clone().any(|place| queue.busy[place % BUFFERS as usize]) {
            return false;
        }
        let mut slots = Vec::new();
        for bytes in frame.chunks(slot_len) {
            let place = queue.next % queue.tx_pages.len();
            queue.busy[place] = true;
            let (page, reference) = queue.tx_pages[place];
            queue.next += 1;
            let at = page as usize * XEN_PAGE_LEN;
            memory.slice(at, bytes.len()).expect("in the page").write(bytes);
            let segment = Segment { gref: reference.0, offset: 0, len: bytes.len() as u16 };
            slots.push((segment, place as u16));
        }
        let sent = queue.tx.send(&slots, flags, extras);
        if queue.tx.ring().push() {
            queue.tx_events.notify().expect("a channel");
        }
        sent
    }

    /// Sends a frame in as few pages as possible.
    pub fn send(&mut self, queue: usize, frame: &[u8]) -> bool {
        self.send_slots(queue, frame, XEN_PAGE_LEN, 0, &[])
    }

    /// Takes the next packet, and offers its pages again.
    ///
    /// # Panics
    /// If the back end broke the ring.
    pub fn receive(&mut self, queue: usize) -> Option<Received> {
        let received = self.receive_and_keep(queue)?;
        let queue = &mut self.queues[queue];
        let ids = received.packet.parts.iter().map(|(id, ..)| id);
        for id in ids.chain(&received.packet.unused) {
            queue.offer(*id);
        }
        queue.push_offers();
        Some(received)
    }

    /// Takes the next packet, and keeps its pages.
    ///
    /// # Panics
    /// If the back end broke the ring.
    pub fn receive_and_keep(&mut self, queue: usize) -> Option<Received> {
        let memory = self.guest.memory();
        let queue = &mut self.queues[queue];
        if queue.rx.ring().available() == 0
            && queue.rx.ring().final_check().expect("responses") == 0
        {
            return None;
        }
        let packet = queue.rx.packet()?;
        let mut frame = Vec::new();
        for (id, offset, len) in &packet.parts {
            let (page, _) = queue.rx_pages[usize::from(*id)];
            let mut bytes = vec![0; usize::from(*len)];
            let at = page as usize * XEN_PAGE_LEN + usize::from(*offset);
            memory.slice(at, bytes.len()).expect("in the page").read(&mut bytes);
            frame.extend(bytes);
        }
        Some(Received { frame, packet })
    }

    /// Revokes all grants; returns `false` if a page is still mapped.
    pub fn release(&mut self) -> bool {
        self.queues.clear();
        self.ctrl = None;
        let guest = &self.guest;
        self.granted.drain(..).fold(true, |all, reference| all & guest.revoke(reference))
    }
}

impl Queue {
    /// Returns the page and grant of the next frame to send. Pages are used in a circle.
    pub fn next_page(&self) -> (u64, GrantRef) {
        self.tx_pages[self.next % self.tx_pages.len()]
    }

    /// Returns the answers to sent frames, each once.
    ///
    /// # Panics
    /// If the back end broke the ring.
    pub fn answers(&mut self) -> Vec<TxResponse> {
        self.reclaim();
        std::mem::take(&mut self.answered)
    }

    /// Takes new answers, whose pages may be used again.
    fn reclaim(&mut self) {
        self.tx.ring().final_check().expect("responses");
        while let Some(answer) = self.tx.response() {
            if let Some(busy) = self.busy.get_mut(usize::from(answer.id)) {
                *busy = false;
            }
            self.answered.push(answer);
        }
    }

    /// Offers a page by its number.
    pub fn offer(&mut self, id: u16) {
        let (_, reference) = self.rx_pages[usize::from(id)];
        self.rx.offer(RxRequest { id, gref: reference.0 });
    }

    /// Publishes offered pages to the back end.
    ///
    /// # Panics
    /// If the channel is broken.
    pub fn push_offers(&mut self) {
        if self.rx.ring().push() {
            self.rx_events.as_ref().unwrap_or(&self.tx_events).notify().expect("a channel");
        }
    }
}
