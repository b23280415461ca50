//! The file in which leases outlive weir.
//!
//! A confined weir opens no file and renames none, so the file is open from the start, and has two places. Each is
//! written whole, in turn, with a number that grows and a sum of its bytes: a weir that is killed while it writes leaves
//! the other place as it was. Behind them are notes of what has changed since, each with the number of the place that it
//! is about: all leases are written again only when no note fits any more. Times in the file are the wall clock's, since
//! it outlives the machine's uptime.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::Ipv4Addr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use weir_limits::{LEASES_BYTES_MAX, LEASES_MAX, LEASES_NOTED_BYTES_MAX};
use weir_wire::Mac;

use crate::leases::{Client, Hold, Lease, Leases};

#[cfg(test)]
mod tests;

/// The first bytes of a place or a note. The number, the length and the sum of the text follow, each of eight bytes.
const MAGIC: [u8; 8] = *b"weirlea1";
const HEADER_LEN: usize = 32;
const PLACE_LEN: u64 = (HEADER_LEN + LEASES_BYTES_MAX) as u64;
const NOTES_AT: u64 = 2 * PLACE_LEN;

/// Leases in a file.
#[derive(Debug)]
pub struct Store {
    file: File,
    /// The number of the last place that was written.
    number: u64,
    /// The bytes of notes about that place; `None` if their state in the file is unknown.
    noted: Option<usize>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Written {
    address: Ipv4Addr,
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
    pub fn load(&mut self, now_secs: u32, lease_secs: u32) -> io::Result<Leases> {
        let places = [self.read(0, PLACE_LEN)?, self.read(PLACE_LEN, PLACE_LEN)?];
        let whole = places.iter().filter_map(|place| whole_of(place));
        let Some((number, text)) = whole.max_by_key(|(number, _)| *number) else {
            return Ok(Leases::default());
        };
        self.number = number;
        let mut all: Vec<Written> = serde_json::from_slice(text)?;
        all.truncate(LEASES_MAX);
        let notes = self.read(NOTES_AT, LEASES_NOTED_BYTES_MAX as u64)?;
        let mut rest = &notes[..];
        while let Some((_, text)) = whole_of(rest).filter(|(of, _)| *of == number) {
            all.extend(serde_json::from_slice::<Vec<Written>>(text)?);
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
    pub fn save(&mut self, leases: &Leases, now_secs: u32) -> io::Result<()> {
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
    pub fn note(
        &mut self,
        leases: &Leases,
        changed: &BTreeSet<Ipv4Addr>,
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
fn framed<'l>(
    number: u64,
    leases: impl Iterator<Item = (Ipv4Addr, &'l Lease)>,
    now_secs: u32,
) -> io::Result<Vec<u8>> {
    let wall = wall_secs();
    let written = |(address, lease): (Ipv4Addr, &Lease)| Written {
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
