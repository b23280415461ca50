//! The file in which leases outlive weir.
//!
//! A confined weir opens no file and renames none, so the file is open from the start, and has two
//! places. Each is written whole, in turn, with a number that grows and a sum of its bytes: a weir
//! that is killed while it writes leaves the other place as it was. After the places come notes
//! about later changes, each with the number of its place. All leases are written again only when
//! there is no room for a note. Times in the file are those of the wall clock, since the file
//! outlives the machine's uptime.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_limits::{LEASES_BYTES_MAX, LEASES_MAX, LEASES_NOTED_BYTES_MAX};
use weir_wire::Mac;

use crate::leases::{Client, Hold, Lease, Leases};

/// The first bytes of a place or a note. The number, the length and the sum of the text follow, each of eight bytes.
const MAGIC: [u8; 8] = *b"weirlea1";
const HEADER_LEN: usize = 32;
const PLACE_LEN: u64 = (HEADER_LEN + LEASES_BYTES_MAX) as u64;
const NOTES_AT: u64 = 2 * PLACE_LEN;

/// An address of one IP version.
pub trait Address: Copy + Ord + Serialize + DeserializeOwned {}
impl Address for Ipv4Addr {}
impl Address for Ipv6Addr {}

/// Leases in a file, all of one IP version.
#[derive(Debug)]
pub struct Store {
    file: File,
    /// The number of the last place that was written.
    number: u64,
    /// The bytes of notes about that place; `None` if their state in the file is unknown.
    noted: Option<usize>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Written<A> {
    address: A,
    vif: String,
    mac: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    client_id: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    declined: bool,
    /// Seconds since 1970.
    until: u64,
}

impl Store {
    /// Takes a file that is open for reading and writing.
    pub fn new(file: File) -> Self {
        Self { file, number: 0, noted: None }
    }

    /// The leases that were saved last. Their ends are on the clock of `now_secs`, and at most `lease_secs` away.
    ///
    /// # Errors
    /// Of reading.
    pub fn load<A: Address>(&mut self, now_secs: u32, lease_secs: u32) -> io::Result<Leases<A>> {
        let places = [self.read(0, PLACE_LEN)?, self.read(PLACE_LEN, PLACE_LEN)?];
        let whole = places.iter().filter_map(|place| whole_of(place));
        let Some((number, text)) = whole.max_by_key(|(number, _)| *number) else {
            return Ok(Leases::default());
        };
        self.number = number;
        let mut all: Vec<Written<A>> = serde_json::from_slice(text)?;
        all.truncate(LEASES_MAX);
        let notes = self.read(NOTES_AT, LEASES_NOTED_BYTES_MAX as u64)?;
        let mut rest = &notes[..];
        while let Some((_, text)) = whole_of(rest).filter(|(of, _)| *of == number) {
            all.extend(serde_json::from_slice::<Vec<Written<A>>>(text)?);
            rest = rest.get(HEADER_LEN + text.len()..).unwrap_or_default();
        }
        let wall = wall_secs();
        let mut leases = Leases::default();
        for written in all {
            let (Ok(mac), Some(id)) = (written.mac.parse::<Mac>(), bytes_of(&written.client_id))
            else {
                continue;
            };
            // Without the limit, a wall clock that was set back would keep a lease for years.
            let left = written.until.saturating_sub(wall).min(lease_secs.into()) as u32;
            let until_secs = match left {
                0 => 0,
                left => now_secs.saturating_add(left),
            };
            let id = Some(id).filter(|id| !id.is_empty());
            let client = Client { vif: written.vif, mac, id };
            let hold = if written.declined { Hold::Declined } else { Hold::Bound };
            leases.put(written.address, Lease { client, hold, until_secs }, now_secs);
        }
        Ok(leases)
    }

    /// Saves all leases.
    ///
    /// # Errors
    /// The write fails. The leases that were saved before stay in the file.
    pub fn save<A: Address>(&mut self, leases: &Leases<A>, now_secs: u32) -> io::Result<()> {
        let number = self.number + 1;
        let place = framed(number, leases.iter(), now_secs)?;
        if place.len() as u64 > PLACE_LEN {
            return Err(io::Error::other("there are too many leases to be saved"));
        }
        self.noted = None;
        self.write(number % 2 * PLACE_LEN, &place)?;
        (self.number, self.noted) = (number, Some(0));
        Ok(())
    }

    /// Saves the leases that have changed, or all leases if there is no room for a note.
    ///
    /// # Errors
    /// The write fails. The leases that were saved before stay in the file, and the next call saves all leases.
    pub fn note<A: Address>(
        &mut self,
        leases: &Leases<A>,
        changed: &BTreeSet<A>,
        now_secs: u32,
    ) -> io::Result<()> {
        let its = changed.iter().filter_map(|address| Some((*address, leases.get(*address)?)));
        let note = framed(self.number, its, now_secs)?;
        let after = self.noted.take().map(|noted| noted + note.len());
        let Some(after) = after.filter(|after| *after <= LEASES_NOTED_BYTES_MAX) else {
            return self.save(leases, now_secs);
        };
        self.write(NOTES_AT + (after - note.len()) as u64, &note)?;
        self.noted = Some(after);
        Ok(())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(at))?;
        self.file.write_all(bytes)
    }

    fn read(&mut self, at: u64, len: u64) -> io::Result<Vec<u8>> {
        self.file.seek(SeekFrom::Start(at))?;
        let mut bytes = Vec::new();
        (&self.file).take(len).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// The bytes of a place or a note, without addresses that are only offered.
fn framed<'l, A: Address>(
    number: u64,
    leases: impl Iterator<Item = (A, &'l Lease)>,
    now_secs: u32,
) -> io::Result<Vec<u8>> {
    let wall = wall_secs();
    let written = |(address, lease): (A, &Lease)| Written {
        address,
        vif: lease.client.vif.clone(),
        mac: lease.client.mac.to_string(),
        client_id: lease.client.id.as_deref().map(digits_of).unwrap_or_default(),
        declined: lease.hold == Hold::Declined,
        until: match lease.holds(now_secs) {
            true => wall + u64::from(lease.until_secs - now_secs),
            false => wall.saturating_sub(u64::from(now_secs - lease.until_secs)),
        },
    };
    let kept = leases.filter(|(_, lease)| lease.hold != Hold::Offered);
    let text = serde_json::to_vec(&kept.map(written).collect::<Vec<_>>())?;
    let mut framed = Vec::with_capacity(HEADER_LEN + text.len());
    framed.extend(MAGIC);
    framed.extend(number.to_le_bytes());
    framed.extend((text.len() as u64).to_le_bytes());
    framed.extend(sum_of(number, &text).to_le_bytes());
    framed.extend(text);
    Ok(framed)
}

/// The number and the text of the place or note at the start of `bytes`, if it is complete.
fn whole_of(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let field = |at: usize| {
        let field = bytes.get(at..)?.first_chunk().copied();
        field.map(u64::from_le_bytes)
    };
    let (number, len, sum) = (field(8)?, field(16)?, field(24)?);
    let end = usize::try_from(len).ok()?.checked_add(HEADER_LEN)?;
    let text = bytes.get(HEADER_LEN..end)?;
    let is_whole = bytes.starts_with(&MAGIC) && sum_of(number, text) == sum;
    is_whole.then_some((number, text))
}

/// FNV-1a. The sum finds torn writes only: an attacker who can write the file can write the sum, too.
fn sum_of(number: u64, text: &[u8]) -> u64 {
    let bytes = number.to_le_bytes().into_iter().chain(text.iter().copied());
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn wall_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn digits_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    };
    rest.is_empty().then(|| pairs.iter().map(byte).collect()).flatten()
}

#[cfg(test)]
mod tests {
    //! Saved leases are read again, in whatever state the file is.

    use std::os::unix::fs::FileExt;

    use super::*;

    fn some_leases() -> Leases {
        let mut leases = Leases::default();
        for n in 1..=9_u8 {
            let client = Client {
                vif: format!("web{n}"),
                mac: Mac([0x52, 0x54, 0, 0, 0, n]),
                id: (n % 2 == 0).then(|| vec![n, 255, 0]),
            };
            let hold = if n == 9 { Hold::Declined } else { Hold::Bound };
            let lease = Lease { client, hold, until_secs: 1000 * u32::from(n) };
            leases.put(Ipv4Addr::new(192, 168, 77, n), lease, 0);
        }
        leases
    }

    fn store() -> (Store, File) {
        let file = tempfile::tempfile().unwrap();
        (Store::new(file.try_clone().unwrap()), file)
    }

    #[test]
    fn what_is_saved_is_loaded_with_the_time_that_is_left() {
        let (mut store, file) = store();
        let leases = some_leases();
        store.save(&leases, 500).unwrap();
        // The clock of a restarted machine begins at 0.
        let loaded = Store::new(file).load::<Ipv4Addr>(0, 100_000).unwrap();
        for ((address, before), (again, after)) in leases.iter().zip(loaded.iter()) {
            assert_eq!((address, &before.client, before.hold), (again, &after.client, after.hold));
            let left = before.until_secs - 500;
            assert!(after.until_secs.abs_diff(left) <= 2, "{left} {}", after.until_secs);
        }
        assert_eq!(loaded.iter().count(), 9);
    }

    #[test]
    fn no_lease_is_longer_than_leases_are() {
        let (mut store, file) = store();
        store.save(&some_leases(), 0).unwrap();
        let loaded = Store::new(file).load::<Ipv4Addr>(0, 600).unwrap();
        assert!(loaded.iter().all(|(_, lease)| lease.until_secs <= 600));
    }

    #[test]
    fn an_offer_is_not_saved() {
        let (mut store, file) = store();
        let mut leases = some_leases();
        let client = Client { vif: "db0".into(), mac: Mac([2; 6]), id: None };
        let offer = Lease { client, hold: Hold::Offered, until_secs: 60 };
        leases.put(Ipv4Addr::new(192, 168, 77, 77), offer, 0);
        store.save(&leases, 0).unwrap();
        assert_eq!(Store::new(file).load::<Ipv4Addr>(0, 600).unwrap().iter().count(), 9);
    }

    #[test]
    fn a_save_that_is_cut_anywhere_leaves_what_was_saved_before() {
        let mut leases = some_leases();
        for cut in [0, 1, 8, 16, 31, 32, 33, 200, 700] {
            let (mut store, file) = store();
            store.save(&leases, 0).unwrap();
            let mut whole = Vec::new();
            (&file).seek(SeekFrom::Start(0)).unwrap();
            (&file).read_to_end(&mut whole).unwrap();
            leases.forget(Ipv4Addr::new(192, 168, 77, 1));
            store.save(&leases, 0).unwrap();
            // The second save is at the start of the file, and only `cut` bytes of it were written.
            let mut second = vec![0; cut];
            file.read_exact_at(&mut second, 0).unwrap();
            file.set_len(0).unwrap();
            file.write_all_at(&whole, 0).unwrap();
            file.write_all_at(&second, 0).unwrap();
            let loaded = Store::new(file).load::<Ipv4Addr>(0, 600).unwrap();
            assert_eq!(loaded.iter().count(), 9, "cut at {cut}");
            leases = some_leases();
        }
    }

    #[test]
    fn after_a_load_the_next_save_counts() {
        let (mut store, file) = store();
        let mut leases = some_leases();
        for _ in 0..3 {
            store.save(&leases, 0).unwrap();
        }
        let mut again = Store::new(file.try_clone().unwrap());
        again.load::<Ipv4Addr>(0, 600).unwrap();
        leases.forget(Ipv4Addr::new(192, 168, 77, 1));
        again.save(&leases, 0).unwrap();
        assert_eq!(Store::new(file).load::<Ipv4Addr>(0, 600).unwrap().iter().count(), 8);
    }

    #[test]
    fn the_longest_leases_of_all_fit() {
        let (mut store, _) = store();
        let mut leases = Leases::default();
        for n in 0..LEASES_MAX as u32 {
            let client = Client {
                vif: "x".repeat(weir_limits::PORT_NAME_LEN_MAX),
                mac: Mac([255; 6]),
                id: Some(vec![255; 255]),
            };
            let lease = Lease { client, hold: Hold::Declined, until_secs: u32::MAX };
            leases.put(Ipv4Addr::from_bits(0xdfff_ff00 - n), lease, 0);
        }
        store.save(&leases, 0).unwrap();
    }

    #[test]
    fn a_file_of_anything_else_is_no_leases() {
        let (mut store, file) = store();
        file.write_all_at(&[0x5a; 4096], 0).unwrap();
        assert_eq!(store.load::<Ipv4Addr>(0, 600).unwrap(), Leases::default());
    }

    #[test]
    fn each_note_is_loaded_and_all_leases_are_written_again_only_once_notes_are_full() {
        let (mut store, file) = store();
        let (mut leases, mut places) = (some_leases(), 0);
        let mut number = 0;
        for n in 0..2_000_u32 {
            let address = Ipv4Addr::new(192, 168, 77, 1 + (n % 9) as u8);
            let mut lease = leases.get(address).unwrap().clone();
            // The lease is given back now and then.
            lease.until_secs = if n % 7 == 0 { 0 } else { 10_000 + n };
            lease.client.id = Some(vec![n as u8; 40]);
            leases.put(address, lease, 500);
            store.note(&leases, &[address].into(), 500).unwrap();
            places += u32::from(std::mem::replace(&mut number, store.number) != store.number);
            if n % 97 == 0 {
                let loaded =
                    Store::new(file.try_clone().unwrap()).load::<Ipv4Addr>(500, 100_000).unwrap();
                for ((address, before), (again, after)) in leases.iter().zip(loaded.iter()) {
                    assert_eq!(
                        (address, &before.client),
                        (again, &after.client),
                        "after {n} notes"
                    );
                    assert_eq!(before.holds(500), after.holds(500), "after {n} notes");
                }
                assert_eq!(loaded.iter().count(), 9);
            }
        }
        assert!(
            (2..=2_000 * 300 / LEASES_NOTED_BYTES_MAX as u32 + 1).contains(&places),
            "{places}"
        );
        assert!(file.metadata().unwrap().len() <= NOTES_AT + LEASES_NOTED_BYTES_MAX as u64);
    }

    #[test]
    fn a_note_that_was_cut_off_or_is_about_another_place_counts_for_nothing() {
        let (mut store, file) = store();
        let mut leases = some_leases();
        let address = Ipv4Addr::new(192, 168, 77, 1);
        let end = |leases: &mut Leases| {
            leases.end(address, 500);
            [address].into()
        };
        store.save(&leases, 500).unwrap();
        let changed = end(&mut leases);
        store.note(&leases, &changed, 500).unwrap();
        let held = || {
            let loaded =
                Store::new(file.try_clone().unwrap()).load::<Ipv4Addr>(500, 100_000).unwrap();
            loaded.get(address).unwrap().holds(500)
        };
        assert!(!held());
        let len = file.metadata().unwrap().len();
        let note = (len - NOTES_AT) as usize;
        let mut bytes = vec![0; note];
        file.read_exact_at(&mut bytes, NOTES_AT).unwrap();
        for cut in 0..note {
            file.set_len(NOTES_AT + cut as u64).unwrap();
            assert!(held(), "cut at {cut}");
            file.write_all_at(&bytes, NOTES_AT).unwrap();
        }
        assert!(!held());
        store.save(&some_leases(), 500).unwrap();
        assert!(held());
    }

    #[test]
    fn after_a_failure_all_leases_are_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut store = Store::new(file.reopen().unwrap());
        let leases = some_leases();
        store.save(&leases, 500).unwrap();
        // A file that is open only for reading cannot be written.
        let written = std::mem::replace(&mut store.file, File::open(file.path()).unwrap());
        let mut less = some_leases();
        less.forget(Ipv4Addr::new(192, 168, 77, 2));
        store.note(&less, &[].into(), 500).unwrap_err();
        store.file = written;
        store.note(&less, &[].into(), 500).unwrap();
        assert_eq!(
            Store::new(file.reopen().unwrap()).load::<Ipv4Addr>(500, 9_000).unwrap().iter().count(),
            8
        );
    }
}
