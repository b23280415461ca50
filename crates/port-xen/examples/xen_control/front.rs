//! A vif's front end in user space, on a real Xen: the part of netfront that this program needs.

use std::error::Error;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_guestmem::{MappedPages, Window};
use weir_limits::XEN_PAGE_LEN;
use weir_netif::message::RxRequest;
use weir_netif::{
    CTRL_SLOT_BYTES, CtrlRequest, CtrlResponse, FrontRing, RxFront, RxPacket, TxFront,
};
use weir_wire::Mac;
use weir_xen::store::Client;
use weir_xen::vif::XenbusState;
use weir_xen::{DomainId, EventChannel, GrantRef, Sharer};

/// Every error ends the program.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Number of queues.
pub const QUEUES: usize = 2;
/// Pages offered per queue.
const BUFFERS: u16 = 16;
/// Longest time for any step of the back end.
const PATIENCE: Duration = Duration::from_secs(10);

/// One queue. Its transmit ring stays empty.
struct Queue {
    rx: RxFront,
    events: Box<dyn EventChannel>,
    buffers: Vec<(GrantRef, MappedPages)>,
    _tx: TxFront,
}

/// The control ring, and the page for keys and tables.
struct Control {
    ring: FrontRing<CTRL_SLOT_BYTES>,
    events: Box<dyn EventChannel>,
    page: (GrantRef, MappedPages),
}

/// A connected front end.
pub struct Front {
    store: Store,
    /// Grants more pages.
    pub sharer: Sharer,
    queues: Vec<Queue>,
    control: Control,
}

/// A received packet.
pub struct Received {
    /// Number of the queue.
    pub queue: usize,
    /// The packet's bytes.
    pub frame: Vec<u8>,
    /// The back end's metadata.
    pub packet: RxPacket,
}

/// Both ends' directories in xenstore.
struct Store {
    client: Client<File>,
    /// The front end's directory, below this domain's.
    front: String,
    back: String,
    domain: DomainId,
}

impl Store {
    fn open(handle: &str) -> Result<Self> {
        let (front, client) = (format!("device/vif/{handle}"), Client::open()?);
        let mut store = Self { client, front, back: String::new(), domain: DomainId(0) };
        store.back = store.get("backend")?;
        store.domain = DomainId(store.get("backend-id")?.parse()?);
        Ok(store)
    }

    /// Reads a required key of the front end's directory.
    fn get(&mut self, key: &str) -> Result<String> {
        let path = format!("{}/{key}", self.front);
        let value = self.client.read(&path)?.ok_or_else(|| format!("there is no {path}"))?;
        Ok(String::from_utf8(value)?)
    }

    fn set(&mut self, key: &str, value: impl ToString) -> Result<()> {
        let path = format!("{}/{key}", self.front);
        Ok(self.client.write(&path, value.to_string().as_bytes())?)
    }

    fn set_state(&mut self, state: XenbusState) -> Result<()> {
        self.set("state", state as u8)
    }

    /// Reads the back end's state, if there is one.
    fn back_state(&mut self) -> Result<Option<XenbusState>> {
        let value = self.client.read(&format!("{}/state", self.back))?;
        Ok(value.and_then(|value| XenbusState::parse(&value)))
    }

    fn await_back(&mut self, state: XenbusState) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while self.back_state()? != Some(state) {
            if Instant::now() > end {
                return Err(format!("the back end is never {state:?}").into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Front {
    /// Connects this domain's vif `handle`, which the toolstack has made.
    pub fn connect(handle: &str) -> Result<Self> {
        let mut store = Store::open(handle)?;
        store.await_back(XenbusState::InitWait)?;
        let sharer = Sharer::open()?;
        store.set("request-rx-copy", 1)?;
        store.set("feature-rx-notify", 1)?;
        store.set("multi-queue-num-queues", QUEUES)?;
        let queues =
            (0..QUEUES).map(|n| queue(&sharer, &mut store, n)).collect::<Result<Vec<_>>>()?;
        let control = control(&sharer, &mut store)?;
        store.set_state(XenbusState::Connected)?;
        store.await_back(XenbusState::Connected)?;
        Ok(Self { store, sharer, queues, control })
    }

    /// Reads the vif's address.
    pub fn mac(&mut self) -> Result<Mac> {
        Ok(self.store.get("mac")?.parse()?)
    }

    /// Returns the reference of the page for keys and tables, for requests.
    pub fn page(&self) -> u32 {
        self.control.page.0.0
    }

    /// Makes a request of the control ring with `bytes` in the page for keys and tables, and waits
    /// for the event of its answer.
    pub fn ask(&mut self, kind: u16, data: [u32; 3], bytes: &[u8]) -> Result<CtrlResponse> {
        let Control { ring, events, page } = &mut self.control;
        page.1.slice(0, bytes.len()).ok_or("more than a page")?.write(bytes);
        let request = CtrlRequest { id: !kind, kind, data };
        ring.request(request.to_bytes()).ok_or("the control ring is full")?;
        if ring.push() {
            events.notify()?;
        }
        while ring.final_check()? == 0 {
            if !wait(&[&**events])? {
                return Err(format!("no answer to {request:?}").into());
            }
        }
        let (_, bytes) = ring.response().ok_or("no answer where one was")?;
        let answer = CtrlResponse::from_bytes(&bytes).ok_or("a status that does not exist")?;
        if (answer.id, answer.kind) != (request.id, kind) {
            return Err(format!("{answer:?} to {request:?}").into());
        }
        Ok(answer)
    }

    /// Waits for a packet's event, and offers its pages again.
    pub fn receive(&mut self) -> Result<Received> {
        loop {
            for (number, queue) in self.queues.iter_mut().enumerate() {
                if let Some((frame, packet)) = queue.receive()? {
                    return Ok(Received { queue: number, frame, packet });
                }
            }
            let channels: Vec<_> = self.queues.iter().map(|queue| &*queue.events).collect();
            if !wait(&channels)? {
                return Err("no packet comes".into());
            }
        }
    }

    /// Waits until the toolstack removes the vif, and gives it up.
    pub fn stay(mut self) -> Result<()> {
        let leaves = [None, Some(XenbusState::Closing), Some(XenbusState::Closed)];
        while !leaves.contains(&self.store.back_state()?) {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.store.set_state(XenbusState::Closed)
    }
}

/// Makes the page of a ring and writes its reference to xenstore.
fn ring(sharer: &Sharer, store: &mut Store, key: &str) -> Result<Window> {
    let (reference, page) = sharer.grant(store.domain, false)?;
    store.set(key, reference.0)?;
    Ok(Window::over(Arc::new(page)))
}

/// Makes a channel and writes its port to xenstore.
fn channel(sharer: &Sharer, store: &mut Store, key: &str) -> Result<Box<dyn EventChannel>> {
    let (port, events) = sharer.allocate(store.domain)?;
    store.set(key, port.0)?;
    Ok(events)
}

fn queue(sharer: &Sharer, store: &mut Store, n: usize) -> Result<Queue> {
    let tx = TxFront::init(ring(sharer, store, &format!("queue-{n}/tx-ring-ref"))?)?;
    let rx = RxFront::init(ring(sharer, store, &format!("queue-{n}/rx-ring-ref"))?)?;
    let events = channel(sharer, store, &format!("queue-{n}/event-channel"))?;
    let buffers = (0..BUFFERS).map(|_| Ok(sharer.grant(store.domain, false)?));
    let buffers = buffers.collect::<Result<_>>()?;
    let mut queue = Queue { rx, events, buffers, _tx: tx };
    (0..BUFFERS).for_each(|id| queue.offer(id));
    queue.rx.ring().push();
    Ok(queue)
}

fn control(sharer: &Sharer, store: &mut Store) -> Result<Control> {
    let ring = FrontRing::init(ring(sharer, store, "ctrl-ring-ref")?)?;
    let events = channel(sharer, store, "event-channel-ctrl")?;
    Ok(Control { ring, events, page: sharer.grant(store.domain, true)? })
}

impl Queue {
    fn offer(&mut self, id: u16) {
        if let Some((reference, _)) = self.buffers.get(usize::from(id)) {
            self.rx.offer(RxRequest { id, gref: reference.0 });
        }
    }

    /// Takes the next packet, if there is one.
    fn receive(&mut self) -> Result<Option<(Vec<u8>, RxPacket)>> {
        if self.rx.ring().final_check()? == 0 {
            return Ok(None);
        }
        let packet = self.rx.packet().ok_or("no packet where one was")?;
        let mut frame = vec![0; XEN_PAGE_LEN];
        let mut len = 0;
        for (id, offset, part) in &packet.parts {
            let (_, page) = self.buffers.get(usize::from(*id)).ok_or("a page that is none")?;
            let part = page.slice((*offset).into(), (*part).into()).ok_or("beyond a page")?;
            len += part.read(frame.get_mut(len..).ok_or("more than a page")?);
        }
        frame.truncate(len);
        for id in packet.parts.iter().map(|(id, ..)| id).chain(&packet.unused) {
            self.offer(*id);
        }
        if self.rx.ring().push() {
            self.events.notify()?;
        }
        // The check tells the back end how far packets have been taken, so that a flow may change its queue.
        self.rx.ring().final_check()?;
        Ok(Some((frame, packet)))
    }
}

/// Waits for an event of one of the channels; returns `false` if none came.
fn wait(channels: &[&dyn EventChannel]) -> Result<bool> {
    let mut fds: Vec<_> = channels
        .iter()
        .map(|channel| PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN))
        .collect();
    if poll(&mut fds, Some(&Timespec::try_from(PATIENCE)?))? == 0 {
        return Ok(false);
    }
    for channel in channels {
        channel.acknowledge()?;
    }
    Ok(true)
}
