//! Guests behind a virtual IOMMU, whose front end translates when it is asked.

use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use weir_engine::guest::{Silence, SilentRing};
use weir_guestmem::Piece;
use weir_vhost_user::{
    HEADER_LEN, Header, IotlbMsg, Payload, VHOST_USER_BACKEND_IOTLB_MSG,
    VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS,
};

use super::session::stopped_with;
use super::*;

const ACCESS_PLATFORM: u64 = 1 << 33;
/// I/O virtual addresses are guest-physical ones plus this.
const SHIFT: u64 = 0x40_0000_0000;
const PAGE: u64 = 0x1000;
const READ: u8 = 1;
const WRITE: u8 = 2;
const BOTH: u8 = 3;

/// A front end's end of the channel for questions.
struct Channel(UnixStream);

impl Channel {
    /// The next question, within a moment: the address, and the access.
    fn next(&mut self) -> Option<(u64, u8)> {
        let mut bytes = [0; HEADER_LEN + 32];
        self.0.read_exact(&mut bytes).ok()?;
        let (head, body) = bytes.split_first_chunk::<HEADER_LEN>().unwrap();
        let header = Header::decode(head).unwrap();
        assert_eq!(header.request(), VHOST_USER_BACKEND_IOTLB_MSG);
        assert!(!header.is_reply() && !header.needs_reply());
        let message = IotlbMsg::decode(header.request(), body).unwrap();
        assert_eq!((message.kind, message.user), (IotlbMsg::MISS, 0));
        Some((message.iova, message.permission))
    }

    /// All questions that come until none has come for a moment.
    fn all(&mut self) -> Vec<(u64, u8)> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

/// A guest behind a virtual IOMMU that is set up; nothing is translated yet.
fn behind(switch: &Switch, mac: u8, features: u64) -> (Guest, Channel) {
    behind_with(switch, mac, features, SIZE)
}

fn behind_with(switch: &Switch, mac: u8, features: u64, size: u16) -> (Guest, Channel) {
    let device = GuestDevice { access_platform: true, ..DEVICE };
    let (port, stream) = switch.port_with(|port| {
        port.set_device(device);
        port
    });
    set_up_behind(port, stream, mac, features, size)
}

fn set_up_behind(
    port: Arc<VhostPort>,
    stream: UnixStream,
    mac: u8,
    features: u64,
    size: u16,
) -> (Guest, Channel) {
    let features = features | ACCESS_PLATFORM;
    let mut guest = Guest::with_rings(port, stream, mac, features, size);
    guest.shift = Some(SHIFT);
    let protocol = guest.front.get_protocol_features().unwrap();
    let containers = 1 << VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS;
    guest.front.set_protocol_features(protocol & !containers).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    guest.front.set_backend_req_fd(theirs.as_fd()).unwrap();
    guest.set_up().unwrap();
    (guest, Channel(ours))
}

fn update(iova: u64, size: u64, user: u64, permission: u8) -> IotlbMsg {
    IotlbMsg { iova, size, user, permission, kind: IotlbMsg::UPDATE }
}

/// The page of an address, translated as this front end always does.
fn page(iova: u64, permission: u8) -> IotlbMsg {
    update(iova & !(PAGE - 1), PAGE, USER + (iova & !(PAGE - 1)) - SHIFT, permission)
}

/// The page of an address, translated by a front end that has the pages of rings in pairs the other way round: none
/// lies behind the one before.
fn turned(iova: u64, permission: u8) -> IotlbMsg {
    let plain = page(iova, permission);
    let user = if iova < SHIFT + RX_BUFFERS { plain.user ^ PAGE } else { plain.user };
    IotlbMsg { user, ..plain }
}

/// Has the driver's rings where [`turned`] says.
fn turn(guest: &mut Guest) {
    let config = Features(guest.features).ring(guest.size);
    let ring = |index| {
        let Addresses { descriptor, driver, device } = ring_at(index);
        let pages = |address: u64, len: usize| {
            let starts = (0..(len as u64).div_ceil(PAGE)).map(|page| address + page * PAGE);
            starts.map(|at| Piece { address: at ^ PAGE, len: PAGE }).collect::<Vec<_>>()
        };
        let [descriptors, drivers, devices] = config.area_sizes();
        let areas =
            [pages(descriptor, descriptors), pages(driver, drivers), pages(device, devices)];
        let at = [descriptor, driver, device].map(|at| at ^ PAGE);
        let at = Addresses { descriptor: at[0], driver: at[1], device: at[2] };
        DriverRing::new(&Arc::new(guest.memory.joining(&areas).unwrap()), config, &at).unwrap()
    };
    (guest.rx, guest.tx) = (ring(0), ring(1));
}

fn end(iova: u64, size: u64) -> IotlbMsg {
    IotlbMsg { iova, size, kind: IotlbMsg::INVALIDATE, ..IotlbMsg::default() }
}

/// All addresses.
const ALL: (u64, u64) = (0, 0);

/// A front end that answers each question, and ends all translations after every few answers.
struct Translator {
    over: Arc<AtomicBool>,
    asked: Arc<Mutex<Vec<(u64, u8)>>>,
    thread: Option<JoinHandle<Channel>>,
}

impl Translator {
    fn start(guest: &mut Guest, channel: Channel, ends_every: usize) -> Self {
        Self::with(guest, channel, ends_every, page)
    }

    fn with(
        guest: &mut Guest,
        mut channel: Channel,
        ends_every: usize,
        answer: fn(u64, u8) -> IotlbMsg,
    ) -> Self {
        let (over, asked) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<_>>>::default());
        let (is_over, all) = (Arc::clone(&over), Arc::clone(&asked));
        let (unused, _) = UnixStream::pair().unwrap();
        let mut front = std::mem::replace(&mut guest.front, FrontEnd::new(unused));
        let thread = thread::spawn(move || {
            let mut answers = 0_usize;
            while !is_over.load(Ordering::Relaxed) {
                let Some((iova, access)) = channel.next() else { continue };
                all.lock().unwrap().push((iova, access));
                front.iotlb_msg(&answer(iova, BOTH)).unwrap();
                answers += 1;
                if ends_every > 0 && answers.is_multiple_of(ends_every) {
                    front.iotlb_msg(&end(ALL.0, ALL.1)).unwrap();
                }
            }
            channel
        });
        Self { over, asked, thread: Some(thread) }
    }

    fn asked(&self) -> Vec<(u64, u8)> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Translator {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking());
    }
}

/// Lets the switch learn where both guests are. A copy of a broadcast does not wait for a
/// translation.
fn meet(guest: &mut Guest, plain: &mut Guest) {
    let hello = frame(guest, None, 60, 0);
    guest.send(&hello);
    assert_eq!(plain.wait_received().1, hello);
    let hello = frame(plain, Some(guest), 60, 1);
    plain.send(&hello);
    assert_eq!(guest.wait_received().1, hello);
}

/// Sends frames in both directions, each with a different length. Returns false once a frame is
/// lost.
fn talk(a: &mut Guest, b: &mut Guest, frames: u8) -> bool {
    for number in 0..frames {
        let len = 60 + 47 * usize::from(number % 30);
        for _ in 0..2 {
            let sent = frame(a, Some(b), len, number);
            a.offer(number.into(), &VnetHdr::default(), &sent);
            a.send_now();
            a.reap();
            let Some((_, received)) = b.wait_received_or_lost(&a.port) else { return false };
            assert_eq!(received, sent);
            b.post(1);
            std::mem::swap(a, b);
        }
    }
    true
}

/// The rings for which it is said that the front end does not answer, each with the number of open questions.
fn waiting(guest: &Guest) -> Vec<(usize, u64)> {
    let count = |ring: &SilentRing| match ring.why {
        Silence::NoTranslation { questions, seconds: 1.. } => Some((ring.ring, questions)),
        _ => None,
    };
    guest.port.info().silent.iter().filter_map(count).collect()
}

#[test]
fn a_front_end_that_does_not_translate_is_named_until_it_does() {
    for format in formats() {
        let switch = Switch::new();
        let mut plain = switch.guest(2, format);
        let (mut guest, mut channel) = behind(&switch, 1, format);
        eventually("both rings wait", || matches!(waiting(&guest)[..], [(0, 1..), (1, 1..)]));
        assert_eq!(guest.port.info().state, State::Connected);
        // weir asks again.
        answer_for_rings(&mut guest, &mut channel);
        guest.start();
        let hello = frame(&guest, None, 60, 1);
        guest.offer(0, &VnetHdr::default(), &hello);
        guest.send_now();
        answer_for_rings(&mut guest, &mut channel);
        eventually("one ring waits", || matches!(waiting(&guest)[..], [(1, 1..)]));
        guest.front.iotlb_msg(&page(SHIFT + TX_BUFFERS, READ)).unwrap();
        assert_eq!(plain.wait_received().1, hello);
        assert_eq!(waiting(&guest), []);
    }
}

#[test]
fn a_guest_behind_a_virtual_iommu_sends_and_receives() {
    for format in formats() {
        until_none_is_late(|| {
            let switch = Switch::new();
            let mut plain = switch.guest(2, format);
            let (mut guest, channel) = behind(&switch, 1, format);
            assert_eq!(guest.port.info().state, State::Connected, "its rings are not known yet");
            let translator = Translator::start(&mut guest, channel, 0);
            let start = Instant::now();
            guest.start();
            meet(&mut guest, &mut plain);
            let loses_none = talk(&mut guest, &mut plain, 60);
            let mut asked = translator.asked();
            let count = asked.len();
            asked.sort_unstable();
            asked.dedup();
            assert!(asked.len() == count || start.elapsed() > Duration::from_secs(1));
            assert_eq!(guest.port.info().stop_reason, None);
            loses_none
        });
    }
}

#[test]
fn translations_that_end_all_the_time_lose_no_frame() {
    for format in formats() {
        until_none_is_late(|| {
            let switch = Switch::new();
            let mut plain = switch.guest(2, format);
            let (mut guest, channel) = behind(&switch, 1, format);
            let _translator = Translator::start(&mut guest, channel, 40);
            guest.start();
            meet(&mut guest, &mut plain);
            talk(&mut guest, &mut plain, 30)
        });
    }
}

/// A guest whose whole memory is translated.
pub(super) fn translated(switch: &Switch, mac: u8, features: u64) -> Guest {
    let (mut guest, channel) = behind(switch, mac, features);
    guest.front.iotlb_msg(&update(SHIFT, MEMORY, USER, BOTH)).unwrap();
    guest.start();
    // The channel stays open: weir may ask.
    std::mem::forget(channel);
    guest
}

/// A guest whose memory is translated, and whose rings of 1024 entries are in pieces.
pub(super) fn in_pieces(switch: &Switch, mac: u8, features: u64) -> Guest {
    let (mut guest, channel) = behind_with(switch, mac, features, 1024);
    turn(&mut guest);
    tell_rings(&mut guest, turned);
    let (at, len) = (RX_BUFFERS, MEMORY - RX_BUFFERS);
    guest.front.iotlb_msg(&update(SHIFT + at, len, USER + at, BOTH)).unwrap();
    guest.start();
    std::mem::forget(channel);
    guest
}

#[test]
fn a_whole_memory_in_one_translation_is_served() {
    for format in formats() {
        let switch = Switch::new();
        let mut plain = switch.guest(2, format);
        let mut guest = translated(&switch, 1, format);
        introduce(&mut guest, &mut plain);
        until_none_is_late(|| talk(&mut guest, &mut plain, 30));
    }
}

/// Answers questions about rings, and returns the others.
fn answer_for_rings(guest: &mut Guest, channel: &mut Channel) -> Vec<(u64, u8)> {
    let mut others = Vec::new();
    loop {
        let asked = channel.all();
        if asked.is_empty() {
            return others;
        }
        for (iova, access) in asked {
            match iova < SHIFT + 0x10_0000 {
                true => guest.front.iotlb_msg(&page(iova, BOTH)).unwrap(),
                false => others.push((iova, access)),
            }
        }
    }
}

#[test]
fn a_question_is_asked_once_and_its_frame_waits_while_all_others_pass() {
    for format in formats() {
        let switch = Switch::new();
        let (mut other, mut third) = (switch.guest(2, format), switch.guest(3, format));
        introduce(&mut other, &mut third);
        let (mut guest, mut channel) = behind(&switch, 1, format);
        answer_for_rings(&mut guest, &mut channel);
        guest.start();
        let hello = frame(&guest, None, 60, 1);
        guest.offer(0, &VnetHdr::default(), &hello);
        guest.send_now();
        let mut asked = answer_for_rings(&mut guest, &mut channel);
        asked.sort_unstable();
        let (first_buffer, frames) =
            (SHIFT + RX_BUFFERS + (u64::from(SIZE) - 1) * BUFFER, SHIFT + TX_BUFFERS);
        let page_of = |at: u64| at & !(PAGE - 1);
        assert_eq!(asked, [(page_of(first_buffer), WRITE), (frames, READ)], "{format:#x}");
        // The guest kicks, and others talk: nothing is asked again soon, and the frame stays.
        let soon = Instant::now() + Duration::from_millis(300);
        for number in 0..30 {
            guest.kick(0);
            guest.kick(1);
            let sent = frame(&other, Some(&third), 60, number);
            other.send(&sent);
            assert_eq!(third.wait_received().1, sent);
            third.post(1);
        }
        let again = channel.all();
        assert!(again.is_empty() || Instant::now() > soon, "{again:x?}");
        assert_eq!((guest.tx.in_flight(), third.received()), (1, None));
        guest.front.iotlb_msg(&page(frames, READ)).unwrap();
        assert_eq!(third.wait_received().1, hello);
        guest.reap();
        assert_eq!(guest.port.info().stop_reason, None);
    }
}

#[test]
fn buffers_that_may_only_be_read_are_never_written() {
    let switch = Switch::new();
    let mut plain = switch.guest(2, modern());
    let (mut guest, mut channel) = behind(&switch, 1, modern());
    answer_for_rings(&mut guest, &mut channel);
    guest.front.iotlb_msg(&update(SHIFT + TX_BUFFERS, PAGE, USER + TX_BUFFERS, READ)).unwrap();
    guest.front.iotlb_msg(&update(SHIFT + RX_BUFFERS, 1 << 20, USER + RX_BUFFERS, READ)).unwrap();
    guest.start();
    let hello = frame(&guest, None, 60, 0);
    guest.send(&hello);
    assert_eq!(plain.wait_received().1, hello);
    plain.send(&frame(&plain, Some(&guest), 60, 9));
    assert_eq!(guest.received(), None);
    assert_eq!(lost([&guest.port, &plain.port]), 1, "it waited as long as a frame may");
    let mut bytes = vec![0; 1 << 20];
    guest.memory.slice(RX_BUFFERS, 1 << 20).unwrap().read(&mut bytes);
    assert!(bytes.iter().all(|byte| *byte == 0));
    // The right to write comes later.
    guest.front.iotlb_msg(&update(SHIFT + RX_BUFFERS, 1 << 20, USER + RX_BUFFERS, WRITE)).unwrap();
    let back = frame(&plain, Some(&guest), 60, 10);
    plain.send(&back);
    assert_eq!(guest.wait_received().1, back);
}

/// The receive buffers are translated to one place after the other, under traffic. Once the end of a translation is
/// answered, not a byte changes there.
#[test]
fn behind_the_answer_to_an_end_nothing_is_touched() {
    for format in [modern(), modern() | RING_PACKED] {
        let switch = Switch::with_workers(2);
        let mut plain = switch.guest(2, format);
        let (mut guest, mut channel) = behind(&switch, 1, format);
        answer_for_rings(&mut guest, &mut channel);
        let (window, len) = (SHIFT + RX_BUFFERS, 1 << 20);
        let place = |round: u64| RX_BUFFERS + (round % 2) * (2 << 20);
        let whole = |at: u64, len, to| update(SHIFT + at, len, USER + to, BOTH);
        guest.front.iotlb_msg(&whole(TX_BUFFERS, 4 << 20, TX_BUFFERS)).unwrap();
        guest.front.iotlb_msg(&whole(RX_BUFFERS, len, place(0))).unwrap();
        guest.start();
        introduce(&mut guest, &mut plain);
        guest.post(1);
        let mut arrived = 0;
        for round in 0..40u64 {
            for number in 0..8 {
                let sent = frame(&plain, Some(&guest), 1400, (round as u8) << 3 | number);
                plain.offer(number.into(), &VnetHdr::default(), &sent);
            }
            plain.send_now();
            guest.front.iotlb_msg(&end(window, len)).unwrap();
            let old = guest.memory.slice(place(round), len as u32).unwrap();
            let (mut before, mut after) = (vec![0; len as usize], vec![0; len as usize]);
            old.read(&mut before);
            thread::sleep(Duration::from_micros(500));
            old.read(&mut after);
            assert!(before == after, "round {round}: {format:#x}");
            guest.front.iotlb_msg(&whole(RX_BUFFERS, len, place(round + 1))).unwrap();
            plain.reap();
            while let Some(used) = guest.rx.take() {
                let address = guest.rx_at[usize::from(used.head)];
                guest.rx_free.push(address);
                guest.post(1);
                arrived += 1;
            }
        }
        assert!(arrived > 40, "{arrived} frames arrived");
        assert_eq!(guest.port.info().stop_reason, None);
    }
}

#[test]
fn each_senseless_translation_ends_its_session_with_a_named_reason() {
    let switch = Switch::new();
    let (mut other, mut third) = (switch.guest(2, modern()), switch.guest(3, modern()));
    introduce(&mut other, &mut third);
    let kind = |kind| IotlbMsg { kind, ..page(SHIFT, BOTH) };
    for (message, reason) in [
        (update(SHIFT, 0, USER, BOTH), "is empty"),
        (update(SHIFT, PAGE, USER, 0), "permission 0"),
        (update(SHIFT, PAGE, USER, 4), "permission 4"),
        (update(u64::MAX - PAGE + 2, PAGE, USER, BOTH), "ends beyond 2^64"),
        (update(SHIFT, PAGE, u64::MAX - PAGE + 2, BOTH), "ends beyond 2^64"),
        (update(SHIFT, u64::MAX, USER, BOTH), "ends beyond 2^64"),
        (update(SHIFT, MEMORY + 1, USER, BOTH), "not in one shared region"),
        (update(SHIFT, PAGE, USER - 1, BOTH), "not in one shared region"),
        (update(SHIFT, PAGE, USER + MEMORY, BOTH), "not in one shared region"),
        (end(SHIFT, 0), "is empty"),
        (end(2, u64::MAX), "ends beyond 2^64"),
        (kind(IotlbMsg::MISS), "1 is not the type"),
        (kind(9), "9 is not the type"),
    ] {
        let (mut guest, _channel) = behind(&switch, 1, modern());
        assert!(guest.front.iotlb_msg(&message).is_err(), "{message:?}");
        stopped_with(&guest.port, reason);
        let sent = frame(&other, Some(&third), 60, 5);
        other.send(&sent);
        assert_eq!(third.wait_received().1, sent);
        third.post(1);
    }
}

#[test]
fn translations_beyond_the_bound_push_out_the_oldest_and_traffic_goes_on() {
    let switch = Switch::new();
    let mut plain = switch.guest(2, modern());
    let (mut guest, channel) = behind(&switch, 1, modern());
    // The pages of the guest's memory get new addresses again and again.
    for number in 0..weir_limits::IOTLB_ENTRIES_MAX as u64 + 500 {
        let iova = (1 << 50) + 2 * number * PAGE;
        guest.front.iotlb_msg(&update(iova, PAGE, USER + number % 2048 * PAGE, BOTH)).unwrap();
    }
    let _translator = Translator::start(&mut guest, channel, 0);
    guest.start();
    meet(&mut guest, &mut plain);
    until_none_is_late(|| talk(&mut guest, &mut plain, 30));
}

#[test]
fn rings_in_pieces_are_served_as_others() {
    for format in formats() {
        for (ends_every, rounds) in [(0, 10), (60, 1)] {
            let switch = Switch::new();
            let mut plain = switch.guest(2, format);
            let (mut guest, channel) = behind_with(&switch, 1, format, 1024);
            turn(&mut guest);
            let _translator = Translator::with(&mut guest, channel, ends_every, turned);
            guest.start();
            meet(&mut guest, &mut plain);
            // All around the rings.
            for _ in 0..rounds {
                until_none_is_late(|| talk(&mut guest, &mut plain, 60));
            }
            assert_eq!(guest.port.info().stop_reason, None);
        }
    }
}

/// The translations of the pages of both rings.
fn tell_rings(guest: &mut Guest, place: fn(u64, u8) -> IotlbMsg) {
    for iova in (SHIFT..SHIFT + 0x2_0000).step_by(PAGE as usize) {
        guest.front.iotlb_msg(&place(iova, BOTH)).unwrap();
    }
}

/// The number of mappings that a guest has.
fn eventually_mapped(guest: &Guest, regions: usize) {
    let port = Arc::clone(&guest.port);
    let what = format!("{regions} mappings are left");
    eventually(&what, || port.memory().mapped().regions == regions);
}

#[test]
fn pieces_that_change_all_the_time_are_bounded_and_hold_up_nobody() {
    let switch = Switch::new();
    let (mut other, mut third) = (switch.guest(2, modern()), switch.guest(3, modern()));
    introduce(&mut other, &mut third);
    let (mut guest, _channel) = behind_with(&switch, 1, modern(), 1024);
    // The descriptors of each ring have four pages, and its device area has three.
    let both = 2 * (4 + 3);
    for round in 0..20 {
        let in_pieces = round % 2 == 0;
        tell_rings(&mut guest, if in_pieces { turned } else { page });
        eventually_mapped(&guest, 1 + if in_pieces { both } else { 0 });
        let sent = frame(&other, Some(&third), 60, round);
        other.send(&sent);
        assert_eq!(third.wait_received().1, sent);
        third.post(1);
        if round % 3 > 0 {
            guest.front.iotlb_msg(&end(ALL.0, ALL.1)).unwrap();
        }
    }
    assert_eq!(guest.port.info().stop_reason, None);
    let Guest { port, front, .. } = guest;
    drop(front);
    eventually("nothing stays mapped", || port.memory().mapped().regions == 0);
}

#[test]
fn a_ring_that_cannot_be_mapped_as_one_is_refused_with_the_reason() {
    let switch = Switch::new();
    for (step, reason) in [(PAGE / 4, "more than 8 pieces"), (PAGE / 2 * 5, "within a page")] {
        let (mut guest, _channel) = behind_with(&switch, 1, modern(), 1024);
        let mut told = Ok(());
        for (nth, at) in (0..0x1_0000).step_by(step as usize).enumerate() {
            // Each part lies apart from the one before.
            let user = USER + RX_BUFFERS * (1 + nth as u64 % 2) + at;
            told = told.and(guest.front.iotlb_msg(&update(SHIFT + at, step, user, BOTH)));
        }
        assert!(told.is_err(), "{reason}");
        stopped_with(&guest.port, reason);
        eventually_mapped(&guest, 0);
    }
}

#[test]
fn memory_that_goes_takes_its_second_mappings_along() {
    let switch = Switch::new();
    let (mut guest, _channel) = behind_with(&switch, 1, modern(), 1024);
    tell_rings(&mut guest, turned);
    eventually_mapped(&guest, 1 + 14);
    // Other memory at the same addresses: the translations stay.
    let other = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&other, MEMORY).unwrap();
    guest.front.set_mem_table(&[(Guest::region(), other.as_fd())]).unwrap();
    // Any message about translations has retired memory looked at again.
    eventually("nothing but the memory and its rings is mapped", || {
        guest.front.iotlb_msg(&end(0, PAGE)).unwrap();
        guest.port.memory().mapped().regions == 1 + 14
    });
    // And none at these addresses, while rings are in service, and while they wait.
    let away = MemoryRegion { user_address: USER + 2 * MEMORY, ..Guest::region() };
    for waits in [false, true] {
        if waits {
            guest.front.set_mem_table(&[(Guest::region(), other.as_fd())]).unwrap();
            tell_rings(&mut guest, turned);
            eventually_mapped(&guest, 1 + 14);
            guest.front.iotlb_msg(&end(ALL.0, ALL.1)).unwrap();
        }
        guest.front.set_mem_table(&[(away, other.as_fd())]).unwrap();
        eventually("nothing but the memory is mapped", || {
            guest.front.iotlb_msg(&end(0, PAGE)).unwrap();
            guest.port.memory().mapped().regions == 1
        });
    }
    assert_eq!(guest.port.info().stop_reason, None);
}

/// A ring waits for its translations, and the guest's memory is replaced meanwhile.
#[test]
fn a_ring_that_was_set_aside_comes_back_in_the_memory_of_today() {
    for format in formats() {
        let switch = Switch::new();
        let (mut other, mut third) = (switch.guest(2, format), switch.guest(3, format));
        introduce(&mut other, &mut third);
        let mut guest = translated(&switch, 1, format);
        introduce(&mut guest, &mut other);
        // Both greetings were broadcasts, so the third guest has got them.
        for _ in 0..2 {
            third.wait_received();
            third.post(1);
        }
        guest.front.iotlb_msg(&end(ALL.0, ALL.1)).unwrap();
        let today = memfd_create("today", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&today, MEMORY).unwrap();
        guest.front.set_mem_table(&[(Guest::region(), today.as_fd())]).unwrap();
        guest.front.iotlb_msg(&update(SHIFT, MEMORY, USER, BOTH)).unwrap();
        // The driver's rings are still in the memory that nobody shares any more.
        guest.offer(0, &VnetHdr::default(), &frame(&guest, None, 60, 0));
        guest.tx.publish();
        guest.kick(1);
        for number in 0..20 {
            let sent = frame(&other, Some(&third), 60, number);
            other.send(&sent);
            assert_eq!(third.wait_received().1, sent);
            third.post(1);
        }
        assert!(guest.tx.take().is_none(), "a chain of another memory was taken");
    }
}
