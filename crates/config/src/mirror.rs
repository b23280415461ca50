//! Rules for the mirrors of one switch.

use weir_limits::MIRRORS_MAX;

use super::VifConfig;
use super::values::{PortName, VlanMode};

/// The reason why ports cannot be mirrored as configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MirrorError {
    /// The port would get copies of its copies.
    #[error("{0} mirrors itself")]
    Itself(PortName),
    /// The port would get copies of another mirror's copies.
    #[error("{0} mirrors {1}, which is a mirror")]
    OfMirror(PortName, PortName),
    /// There are too many mirrors.
    #[error("{0} would be one mirror more than {MIRRORS_MAX}")]
    TooMany(PortName),
    /// The mirror has a key that does not apply to copies.
    #[error("{0} has `mirror` and `{1}`, which does not hold for copies")]
    Ignores(PortName, &'static str),
}

impl MirrorError {
    /// The port whose `mirror` is wrong.
    #[must_use]
    pub fn port(&self) -> &PortName {
        match self {
            Self::Itself(port)
            | Self::OfMirror(port, _)
            | Self::TooMany(port)
            | Self::Ignores(port, _) => port,
        }
    }

    /// Advice on what to do about the error.
    #[must_use]
    pub fn help(&self) -> String {
        match self {
            Self::Ignores(port, "filter") => {
                format!("a mirror gets all frames: `weir filter clear {port}` comes first")
            }
            Self::Ignores(_, key) => {
                format!("a mirror gets all frames: `{key}=none` comes with `mirror`")
            }
            _ => "`weir vif list` shows what mirrors what".to_owned(),
        }
    }
}

impl VifConfig {
    /// Checks that the interface, if it is a mirror, has only keys that apply to copies.
    ///
    /// # Errors
    /// [`MirrorError::Ignores`].
    pub fn check_mirror(&self) -> Result<(), MirrorError> {
        if self.vlan.mirrored().is_empty() {
            return Ok(());
        }
        let ignored =
            self.rows().into_iter().find(|(key, value)| !key.of_copies && value.is_some());
        match ignored {
            Some((key, _)) => Err(MirrorError::Ignores(self.name.clone(), key.name)),
            None => Ok(()),
        }
    }
}

/// A note for the user if a port is the mirror of ports that do not exist.
pub fn mirror_note(
    port: &PortName,
    vlan: &VlanMode,
    exists: impl Fn(&PortName) -> bool,
) -> Option<String> {
    let missing = vlan.mirrored().iter().filter(|name| !exists(name));
    let missing: Vec<_> = missing.map(PortName::as_str).collect();
    let names = missing.join(" and no port ");
    (!missing.is_empty()).then(|| {
        format!("there is no port {names} yet: {port} gets copies when it comes, and is in no VLAN")
    })
}

/// Checks the mirrors among the ports of a switch.
///
/// # Errors
/// The first error.
pub fn check_mirrors(ports: &[(&PortName, &VlanMode)]) -> Result<(), MirrorError> {
    let mirrors = ports.iter().filter(|(_, vlan)| !vlan.mirrored().is_empty());
    for (nth, (port, vlan)) in mirrors.clone().enumerate() {
        let port = (*port).clone();
        if vlan.mirrored().contains(&port) {
            return Err(MirrorError::Itself(port));
        }
        let other = mirrors.clone().find(|(other, _)| vlan.mirrored().contains(other));
        if let Some((other, _)) = other {
            return Err(MirrorError::OfMirror(port, (*other).clone()));
        }
        if nth >= MIRRORS_MAX {
            return Err(MirrorError::TooMany(port));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ports: &[(&str, &str)]) -> Result<(), String> {
        let mode = |of: &str| match of {
            "" => VlanMode::Unset,
            of => VlanMode::Mirror(of.parse().unwrap()),
        };
        let ports: Vec<_> =
            ports.iter().map(|(name, of)| (name.parse().unwrap(), mode(of))).collect();
        let ports: Vec<(&PortName, &VlanMode)> = ports.iter().map(|(a, b)| (a, b)).collect();
        check_mirrors(&ports).map_err(|error| error.to_string())
    }

    #[test]
    fn copies_are_not_copied_and_mirrors_are_few() {
        assert_eq!(check(&[("a", ""), ("m", "a, b"), ("n", "a")]), Ok(()));
        assert_eq!(check(&[("m", "a,m")]), Err("m mirrors itself".into()));
        let chain = check(&[("n", "m"), ("m", "a")]);
        assert_eq!(chain, Err("n mirrors m, which is a mirror".into()));
        let many = [("m1", "a"), ("m2", "a"), ("m3", "a"), ("m4", "a"), ("m5", "a")];
        assert_eq!(check(&many), Err("m5 would be one mirror more than 4".into()));
        assert_eq!(check(&many[..MIRRORS_MAX]), Ok(()));
    }

    #[test]
    fn ports_to_mirror_are_named_in_a_list() {
        let ports = "web0, lan,web0".parse::<crate::MirroredPorts>().unwrap();
        assert_eq!(ports.to_string(), "web0,lan");
        let many = vec!["p"; 17].join(",");
        for bad in ["", "a,,b", "a b", &many] {
            assert!(bad.parse::<crate::MirroredPorts>().is_err(), "{bad:?}");
        }
    }
}
