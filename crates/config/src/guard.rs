//! The configured source guard of an interface: the addresses from which its guest may send.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::DeValue;
use utoipa::ToSchema;
use weir_fabric::SourceGuard;
use weir_limits::SOURCE_ADDRESSES_MAX;

use super::error::Fault;
use super::keys::{Change, keys};
use super::section::{self, FromToml};
use super::values::{GuardMode, ValueError, schema_as};

keys! {
    /// The source guard: the addresses from which a guest may send.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Guarding {
        /// The mode of the guard: off, or the source of the guest's addresses.
        mode: GuardMode => Option<GuardMode> = GuardMode::Off, [named("source_guard"), of_each_xen(EACH_ITS_OWN)];
        /// The addresses and prefixes that the guest may send from.
        addresses: Addresses => Change<Addresses> = Addresses::default(), [of_each_xen(EACH_ITS_OWN)];
        /// Whether the guest may send router advertisements and DHCP answers.
        router: bool => Option<bool> = false, [of_each_xen(EACH_ITS_OWN)];
    }

    /// Changes of the guard by `weir vif set`. Without a guard there are no addresses.
    #[derive(Debug, Clone)]
    pub struct GuardChanges;
}

/// Advice for Xen guests, which cannot all have the same addresses.
const EACH_ITS_OWN: &str =
    "each guest has its own: in a table [xen-vif.\"NAME.N\"], or by `weir vif set`";

/// Addresses and prefixes of a guest, at most [`SOURCE_ADDRESSES_MAX`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Addresses(Vec<IpNet>);

impl Addresses {
    /// The addresses, each as a prefix.
    pub fn as_slice(&self) -> &[IpNet] {
        &self.0
    }

    fn of(texts: &[&str]) -> Result<Self, ValueError> {
        if texts.is_empty() || texts.len() > SOURCE_ADDRESSES_MAX {
            let max = SOURCE_ADDRESSES_MAX as u64;
            let value = format!("{} addresses", texts.len());
            return Err(ValueError::OutOfRange { min: 1, max, value });
        }
        texts.iter().map(|text| address(text)).collect::<Result<_, _>>().map(Self)
    }
}

/// An address, or a prefix.
fn address(text: &str) -> Result<IpNet, ValueError> {
    let net = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse::<IpNet>().map_err(|_| ValueError::Quantity {
            value: text.into(),
            expected: "an address or a prefix, such as \"10.0.0.5\" or \"fd00::/64\"",
        })?,
    };
    // A user who writes 10.0.0.5/24 rarely means that the guest has the whole network.
    if net.trunc() != net {
        return Err(ValueError::HostBits { value: text.into(), network: net.trunc().to_string() });
    }
    let address = net.addr();
    let is_broadcast = address == IpAddr::from([255; 4]);
    if address.is_multicast() || is_broadcast || address.is_unspecified() && net.prefix_len() > 8 {
        return Err(ValueError::AddressNotUnicast { value: text.into() });
    }
    Ok(net)
}

impl TryFrom<Vec<String>> for Addresses {
    type Error = ValueError;
    fn try_from(texts: Vec<String>) -> Result<Self, ValueError> {
        if texts.is_empty() {
            return Ok(Self::default());
        }
        Self::of(&texts.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

schema_as!(Addresses, Vec<String>);

impl From<Addresses> for Vec<String> {
    fn from(addresses: Addresses) -> Self {
        addresses.0.iter().map(shown).collect()
    }
}

impl FromStr for Addresses {
    type Err = ValueError;
    /// Reads addresses with commas between them.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        Self::of(&text.split(',').map(str::trim).collect::<Vec<_>>())
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.iter().map(shown).collect::<Vec<_>>().join(", "))
    }
}

/// The text of a prefix. A single address is shown without a prefix length.
fn shown(net: &IpNet) -> String {
    match net.prefix_len() == net.max_prefix_len() {
        true => net.addr().to_string(),
        false => net.to_string(),
    }
}

impl FromToml for Addresses {
    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, section::Fault> {
        let expected = "addresses in brackets, such as [\"10.0.0.5\", \"fd00::5\"]";
        let fault = |error| section::Fault::new(value, error);
        match value.get_ref() {
            DeValue::String(text) => text.parse().map_err(fault),
            DeValue::Array(items) => {
                let text =
                    |item: &'_ Spanned<DeValue<'_>>| item.get_ref().as_str().map(str::to_owned);
                let texts: Option<Vec<_>> = items.iter().map(text).collect();
                let found = "an array of something else";
                let texts =
                    texts.ok_or_else(|| fault(ValueError::WrongType { expected, found }))?;
                let texts: Vec<_> = texts.iter().map(String::as_str).collect();
                Self::of(&texts).map_err(fault)
            }
            other => Err(fault(ValueError::WrongType { expected, found: other.type_str() })),
        }
    }
}

impl Guarding {
    /// Addresses that no other guest may have: the configured single addresses, but not prefixes.
    pub fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let asked = self.addresses.as_slice().iter().filter(|_| self.mode != GuardMode::Off);
        asked.filter(|net| net.prefix_len() == net.max_prefix_len()).map(IpNet::addr)
    }

    /// Keys of the guard that do not fit each other.
    pub(super) fn faults(&self, mac_check: bool) -> Vec<Fault> {
        let fault = |keys, reason: &str, help: &str| Fault {
            keys,
            reason: reason.into(),
            help: help.into(),
        };
        let (is_on, has_addresses) = (self.mode != GuardMode::Off, !self.addresses.0.is_empty());
        let mut faults = Vec::new();
        if has_addresses && !is_on {
            let reason = "`addresses` has no effect without `source_guard`";
            let help = "add `source_guard = \"configured\"`";
            faults.push(fault(["addresses", "source_guard"], reason, help));
        }
        if self.mode == GuardMode::Configured && !has_addresses {
            let reason = "`source_guard = \"configured\"` without `addresses`";
            let help = "add for example `addresses = [\"10.0.0.5\", \"fd00::5\"]`";
            faults.push(fault(["source_guard", "addresses"], reason, help));
        }
        if is_on && !mac_check {
            let reason = "`source_guard` with `mac_check = false`";
            let help = "ARP and neighbour discovery are compared with the guest's MAC address: remove `mac_check = false`";
            faults.push(fault(["source_guard", "mac_check"], reason, help));
        }
        faults
    }

    /// The guard for the engine. Addresses that DHCP gave under the guard `before` stay valid.
    pub fn guard(&self, before: Option<&SourceGuard>) -> Option<Arc<SourceGuard>> {
        let guard = || SourceGuard::new(self.addresses.0.clone(), self.router);
        match self.mode {
            GuardMode::Off => None,
            GuardMode::Configured => Some(Arc::new(guard())),
            GuardMode::Snooped => Some(Arc::new(guard().snooping(before))),
        }
    }
}

impl GuardChanges {
    /// Clears the addresses of a guard that is turned off.
    fn settle(&mut self, _: &mut Guarding) {
        if (self.mode, &self.addresses) == (Some(GuardMode::Off), &Change::Keep) {
            self.addresses = Change::Clear;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{messages, parse, refused};
    use super::super::{Setting, VifChanges, VifConfig};
    use super::*;

    fn vif(lines: &str) -> VifConfig {
        parse(&format!("[vif.web0]\n{lines}\n")).unwrap().vifs.remove(0)
    }

    #[test]
    fn addresses_and_prefixes_are_read_and_written_back() {
        let lines = "source_guard = \"configured\"\naddresses = [\"10.0.0.5\", \"fd00::5/128\", \"10.9.0.0/24\"]\nrouter = true";
        let vif = vif(lines);
        assert_eq!(vif.guarding.mode, GuardMode::Configured);
        assert_eq!(vif.guarding.addresses.to_string(), "10.0.0.5, fd00::5, 10.9.0.0/24");
        assert!(vif.guarding.router && vif.guarding.guard(None).is_some());
        let json = serde_json::to_string(&vif).unwrap();
        assert_eq!(serde_json::from_str::<VifConfig>(&json).unwrap(), vif);
        assert!(VifConfig::default_guarding().guard(None).is_none());
    }

    impl VifConfig {
        fn default_guarding() -> Guarding {
            vif("").guarding
        }
    }

    #[test]
    fn what_no_guest_has_is_refused() {
        let configured = |addresses: &str| {
            let lines =
                format!("[vif.web0]\nsource_guard = \"configured\"\naddresses = {addresses}\n");
            refused(&lines)
        };
        for (addresses, words) in [
            ("[]", "must be 1 to 32, not 0 addresses"),
            ("[\"10.0.0.5/24\"]", "`10.0.0.5/24` is an address within 10.0.0.0/24"),
            ("[\"224.0.0.1\"]", "`224.0.0.1` cannot be a guest's address"),
            ("[\"ff02::1\"]", "`ff02::1` cannot be a guest's address"),
            ("[\"255.255.255.255\"]", "cannot be a guest's address"),
            ("[\"0.0.0.0\"]", "cannot be a guest's address"),
            ("[\"::\"]", "cannot be a guest's address"),
            ("[\"web0\"]", "`web0` is not an address or a prefix"),
            ("[5]", "expected addresses in brackets"),
            ("5", "expected addresses in brackets"),
        ] {
            let shown = configured(addresses);
            assert!(shown.contains(words), "{addresses}: {shown}");
        }
        let many = vec!["\"10.0.0.1\""; SOURCE_ADDRESSES_MAX + 1].join(", ");
        assert!(configured(&format!("[{many}]")).contains("must be 1 to 32"));
        assert_eq!(
            vif("source_guard = \"configured\"\naddresses = \"0.0.0.0/0, ::/0\"")
                .guarding
                .addresses
                .0
                .len(),
            2
        );
    }

    #[test]
    fn keys_that_do_not_go_together_are_refused() {
        const NO_ADDRESSES: &str = "`source_guard = \"configured\"` without `addresses`";
        const UNGUARDED: &str = "`addresses` has no effect without `source_guard`";
        const MAC_UNCHECKED: &str = "`source_guard` with `mac_check = false`";
        let message = |lines: &str| messages(&format!("[vif.web0]\n{lines}\n"));
        let guarded = "source_guard = \"configured\"";
        let addresses = "addresses = \"10.0.0.5\"";
        assert_eq!(message(guarded), [format!("`vif.web0`: {NO_ADDRESSES}")]);
        assert_eq!(message(addresses), [format!("`vif.web0`: {UNGUARDED}")]);
        let unchecked = format!("{guarded}\n{addresses}\nmac_check = false");
        assert_eq!(message(&unchecked), [format!("`vif.web0`: {MAC_UNCHECKED}")]);
        assert!(vif("source_guard = \"snooped\"").guarding.guard(None).unwrap().snoops());
        let unchecked = message("source_guard = \"snooped\"\nmac_check = false");
        assert_eq!(unchecked, [format!("`vif.web0`: {MAC_UNCHECKED}")]);
        // A bad value gives one problem, without a second one about the other key.
        assert_eq!(message(&format!("{guarded}\naddresses = 7")).len(), 1);
        assert_eq!(message(&format!("source_guard = \"on\"\n{addresses}")).len(), 1);
    }

    #[test]
    fn a_guard_changes_and_goes() {
        let change = |vif: &mut VifConfig, settings: &[&str]| {
            let settings: Vec<Setting> =
                settings.iter().map(|text| text.parse().unwrap()).collect();
            let changes = VifChanges::from_settings(&vif.name, &settings).unwrap();
            let json = serde_json::to_string(&changes).unwrap();
            assert_eq!(serde_json::from_str::<VifChanges>(&json).unwrap(), changes);
            changes.apply(vif);
        };
        let mut vif = vif("");
        change(&mut vif, &["source_guard=configured", "addresses=10.0.0.5,fd00::5", "router=true"]);
        assert_eq!(vif.guarding.addresses.to_string(), "10.0.0.5, fd00::5");
        assert!(vif.guarding.router);
        change(&mut vif, &["addresses=[\"10.0.0.6\"]"]);
        assert_eq!(vif.guarding.addresses.to_string(), "10.0.0.6");
        assert_eq!(vif.guarding.mode, GuardMode::Configured);
        change(&mut vif, &["addresses=none"]);
        assert_eq!(vif.guarding.faults(true)[0].keys, ["source_guard", "addresses"]);
        change(&mut vif, &["addresses=10.0.0.7"]);
        change(&mut vif, &["source_guard=off", "router=false"]);
        assert_eq!(vif.guarding, Guarding::default());
    }
}
