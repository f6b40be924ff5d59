//! The body of a container create: what it asks for, and what the guard changes in it.

use std::path::Path;

use creel_model::labels::Labels;
use serde_json::Value;

use crate::Policy;

use super::json::JsonObject;

/// The capabilities that give a container the rights of the host.
const MIGHTY: [&str; 4] = ["ALL", "CAP_ALL", "SYS_ADMIN", "CAP_SYS_ADMIN"];

/// A container create.
#[derive(Debug)]
pub(super) struct ContainerBody {
    body: JsonObject,
    host: JsonObject,
}

/// A named volume that a bind creates when it is absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedVolume {
    pub(super) name: String,
    pub(super) driver: Option<String>,
}

impl ContainerBody {
    pub(super) fn parse(text: &[u8]) -> serde_json::Result<Self> {
        let body = JsonObject::parse(text)?;
        let host = body.object("HostConfig");
        Ok(Self { body, host })
    }

    /// Returns the body to forward.
    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        if self.host.keys().next().is_some() {
            self.body.set("HostConfig", &self.host);
        }
        self.body.to_bytes()
    }

    pub(super) fn add_labels(&mut self, labels: &Labels) {
        add_labels(&mut self.body, labels);
    }

    /// Returns why the policy forbids the create, if it does.
    pub(super) fn refusal(&self, policy: &Policy) -> Option<String> {
        if policy.deny_privileged && self.is_privileged() {
            return Some("privileged containers are denied (--deny-privileged)".to_owned());
        }
        if policy.deny_host_mounts
            && let Some(source) = self.host_mount()
        {
            return Some(format!("mounting {source} of the host is denied (--deny-host-mounts)"));
        }
        let requested = self.host.get("Memory").and_then(|memory| memory.as_u64());
        match (policy.max_memory, requested) {
            (Some(most), Some(requested)) if requested > most => Some(format!(
                "the container asks for {requested} bytes of memory, {most} are allowed (--max-memory)"
            )),
            _ => None,
        }
    }

    fn is_privileged(&self) -> bool {
        let added = self.host.get("CapAdd");
        let added = added.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let is_mighty = |right: &Value| {
            let right = right.as_str().unwrap_or_default().to_ascii_uppercase();
            MIGHTY.contains(&right.as_str())
        };
        self.host.get("Privileged") == Some(Value::Bool(true))
            || added.iter().any(is_mighty)
            || self.host.text("PidMode").as_deref() == Some("host")
    }

    fn host_mount(&self) -> Option<String> {
        self.host_mounts().into_iter().next()
    }

    /// Returns a host directory that it mounts and that contains this socket, if any.
    pub(super) fn mount_around(&self, socket: &str) -> Option<String> {
        let socket = Path::new(socket);
        let holds = |source: &String| socket.parent().is_some_and(|up| up.starts_with(source));
        self.host_mounts().into_iter().find(holds)
    }

    fn host_mounts(&self) -> Vec<String> {
        let bound = self.binds().into_iter().map(|bind| source_of(&bind).to_owned());
        let mounted = self.host.objects("Mounts").into_iter().filter_map(|mount| {
            match mount.text("Type").as_deref() {
                Some("bind") => mount.text("Source"),
                _ => device_of(&mount.object("VolumeOptions").object("DriverConfig"), "Options"),
            }
        });
        bound.chain(mounted).filter(|source| source.starts_with('/')).collect()
    }

    /// Sets a memory limit on a container that has none.
    pub(super) fn limit_memory(&mut self, most: u64) {
        let requested =
            self.host.get("Memory").and_then(|memory| memory.as_u64()).unwrap_or_default();
        if requested == 0 {
            self.host.set("Memory", &most);
        }
    }

    fn binds(&self) -> Vec<String> {
        let binds = self.host.get("Binds").unwrap_or_default();
        let texts = binds.as_array().into_iter().flatten();
        texts.filter_map(|bind| bind.as_str().map(str::to_owned)).collect()
    }

    /// Returns the volumes that its binds name.
    pub(super) fn named_volumes(&self) -> Vec<NamedVolume> {
        let driver = self.host.text("VolumeDriver").filter(|driver| !driver.is_empty());
        let binds = self.binds();
        let names = binds.iter().filter(|bind| bind.contains(':')).map(|bind| source_of(bind));
        names
            .filter(|name| !name.is_empty() && !name.starts_with(['/', '.', '~']))
            .map(|name| NamedVolume { name: name.to_owned(), driver: driver.clone() })
            .collect()
    }

    /// Returns, for each mount that creates a volume, its index and the requested name.
    pub(super) fn mounted_volumes(&self) -> Vec<(usize, Option<String>)> {
        let mounts = self.host.objects("Mounts").into_iter().enumerate();
        let volumes = mounts.filter(|(_, mount)| mount.text("Type").as_deref() == Some("volume"));
        volumes
            .map(|(place, mount)| (place, mount.text("Source").filter(|name| !name.is_empty())))
            .collect()
    }

    /// Returns the volumes that it names in binds and mounts.
    pub(super) fn volume_names(&self) -> Vec<String> {
        let bound = self.named_volumes().into_iter().map(|volume| volume.name);
        let mounted = self.mounted_volumes().into_iter().filter_map(|(_, name)| name);
        bound.chain(mounted).collect()
    }

    /// Returns the containers whose volumes it shares.
    pub(super) fn volumes_from(&self) -> Vec<String> {
        let from = self.host.get("VolumesFrom").unwrap_or_default();
        let texts = from.as_array().into_iter().flatten().filter_map(Value::as_str);
        // A mode may follow the name.
        texts.map(|text| text.split(':').next().unwrap_or(text).to_owned()).collect()
    }

    /// Sets the labels of the volume that a mount creates.
    pub(super) fn label_mount(&mut self, place: usize, labels: &Labels) {
        let mut mounts = self.host.objects("Mounts");
        if let Some(mount) = mounts.get_mut(place) {
            let mut options = mount.object("VolumeOptions");
            add_labels(&mut options, labels);
            mount.set("VolumeOptions", &options);
        }
        self.host.set("Mounts", &mounts);
    }

    /// Replaces the engine's own socket with another one where the container asks for it. Returns
    /// whether it did.
    pub(super) fn replace_socket(&mut self, theirs: &str, ours: &str) -> bool {
        let binds = self.binds();
        let replaced: Vec<String> = binds
            .iter()
            .map(|bind| match bind.split_once(':') {
                Some((source, rest)) if source == theirs => format!("{ours}:{rest}"),
                _ => bind.clone(),
            })
            .collect();
        let mut mounts = self.host.objects("Mounts");
        let mut changed = replaced != binds;
        for mount in &mut mounts {
            if mount.text("Type").as_deref() == Some("bind")
                && mount.text("Source").as_deref() == Some(theirs)
            {
                mount.set("Source", &ours);
                changed = true;
            }
        }
        if changed {
            if !binds.is_empty() {
                self.host.set("Binds", &replaced);
            }
            if !mounts.is_empty() {
                self.host.set("Mounts", &mounts);
            }
        }
        changed
    }
}

/// Adds labels to the map under `Labels`, and replaces those with the same name.
pub(super) fn add_labels(object: &mut JsonObject, labels: &Labels) {
    let mut all = object.object("Labels");
    for (key, value) in labels.iter() {
        all.put(key, value);
    }
    object.set("Labels", &all);
}

/// Returns the host directory that backs a volume, if there is one.
pub(super) fn device_of(object: &JsonObject, key: &str) -> Option<String> {
    object.object(key).text("device").filter(|device| device.starts_with('/'))
}

fn source_of(bind: &str) -> &str {
    bind.split_once(':').map_or("", |(source, _)| source)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn body(value: Value) -> ContainerBody {
        ContainerBody::parse(value.to_string().as_bytes()).unwrap()
    }

    fn value(body: ContainerBody) -> Value {
        serde_json::from_slice(&body.into_bytes()).unwrap()
    }

    #[test]
    fn labels_go_over_inherited_ones_and_spare_the_rest() {
        let mut body = body(json!({ "Image": "x", "labels": { "a": "1", "n": "old" } }));
        body.add_labels(&Labels::from([("n", "new")]));
        assert_eq!(value(body), json!({ "Image": "x", "Labels": { "a": "1", "n": "new" } }));
    }

    #[test]
    fn volumes_are_distinguished_from_directories() {
        let mut body = body(json!({ "HostConfig": {
            "Binds": ["data:/data:ro", "/etc:/etc", "/anonymous", "more:/more"],
            "VolumeDriver": "local",
            "VolumesFrom": ["other:ro", "one-more"],
            "Mounts": [
                { "Type": "bind", "Source": "/srv", "Target": "/srv" },
                { "Type": "volume", "Source": "named", "Target": "/n" },
                { "Type": "volume", "Target": "/a", "VolumeOptions": { "NoCopy": true } },
            ],
        } }));
        let names: Vec<_> = body.named_volumes().into_iter().map(|volume| volume.name).collect();
        assert_eq!(names, ["data", "more"]);
        assert_eq!(body.mounted_volumes(), [(1, Some("named".to_owned())), (2, None)]);
        assert_eq!(body.volume_names(), ["data", "more", "named"]);
        assert_eq!(body.volumes_from(), ["other", "one-more"]);
        body.label_mount(2, &Labels::from([("n", "1")]));
        let options = &value(body)["HostConfig"]["Mounts"][2]["VolumeOptions"];
        assert_eq!(options, &json!({ "NoCopy": true, "Labels": { "n": "1" } }));
    }

    #[test]
    fn a_mount_that_contains_the_engines_socket_is_detected() {
        let around = |source: &str| {
            let body =
                body(json!({ "HostConfig": { "Binds": [format!("{source}:/x"), "/etc:/etc"] } }));
            body.mount_around("/run/docker.sock")
        };
        assert_eq!(around("/run").as_deref(), Some("/run"));
        assert_eq!(around("/").as_deref(), Some("/"));
        assert_eq!(around("/run/docker.sock"), None);
        assert_eq!(around("/runner"), None);
    }

    #[test]
    fn the_engines_socket_is_replaced_by_the_guards() {
        let mut body = body(json!({ "HostConfig": {
            "Binds": ["/run/docker.sock:/var/run/docker.sock", "/etc:/etc"],
            "Mounts": [{ "Type": "bind", "Source": "/run/docker.sock", "Target": "/s" }],
        } }));
        assert!(body.replace_socket("/run/docker.sock", "/guard.sock"));
        let host = &value(body)["HostConfig"];
        assert_eq!(host["Binds"], json!(["/guard.sock:/var/run/docker.sock", "/etc:/etc"]));
        assert_eq!(host["Mounts"][0]["Source"], json!("/guard.sock"));
    }

    #[test]
    fn a_policy_refuses_what_it_denies() {
        let strict = Policy {
            deny_privileged: true,
            deny_host_mounts: true,
            max_memory: Some(100),
            ..Policy::default()
        };
        let refused = |host: Value| body(json!({ "HostConfig": host })).refusal(&strict);
        let may = |host: Value| refused(host).is_none();
        assert!(may(json!({})) && may(json!({ "Memory": 100, "Binds": ["data:/data"] })));
        assert!(!may(json!({ "Privileged": true })) && !may(json!({ "privileged": true })));
        assert!(!may(json!({ "CapAdd": ["sys_admin"] })) && !may(json!({ "PidMode": "host" })));
        assert!(!may(json!({ "Memory": 101 })) && !may(json!({ "Binds": ["/:/host"] })));
        let options = json!({ "DriverConfig": { "Options": { "device": "/", "o": "bind" } } });
        let mount = json!({ "Type": "volume", "Target": "/x", "VolumeOptions": options });
        assert!(!may(json!({ "Mounts": [mount] })));
        let twice = br#"{"HostConfig":{"Privileged":true},"hostconfig":{"Memory":1}}"#;
        assert!(ContainerBody::parse(twice).unwrap().refusal(&strict).is_some());
    }
}
