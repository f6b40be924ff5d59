//! Files that creel puts into containers, before they start and while they run.
//!
//! The engine unpacks them from an archive, so nothing is needed in the image: no shell, no `tar`,
//! not even a directory. The files belong to the user that the container's processes run as. The
//! engine would resolve that user on the wrong machine, so it is resolved here.

use std::io::{self, Cursor, Read};

use bollard::errors::Error;
use bytes::Bytes;
use creel_model::labels;
use creel_model::provider::Placed;
use jiff::Timestamp;
use uuid::Uuid;

use super::connection::EngineConnection;
use super::encode::encoded;
use super::model::ContainerDetails;

/// The file that lists a container's users.
const USERS: &str = "/etc/passwd";
/// The file that lists a container's groups.
const GROUPS: &str = "/etc/group";
/// The maximum length read of either.
const TABLE_LIMIT: u64 = 1 << 20;

/// A user and a group by their numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct UserIds {
    user: u64,
    group: u64,
}

/// Puts files into a created container.
pub(super) async fn place(
    connection: &EngineConnection,
    id: &str,
    files: &[Placed],
) -> Result<(), Error> {
    let user = details(connection, id).await?.config.user;
    let identity = identity(connection, id, &user).await?;
    connection.put_archive(id, "/", archive(files, identity)?).await
}

/// Updates the lease file of a container that has a holder.
pub(super) async fn renew(connection: &EngineConnection, id: &str) -> Result<(), Error> {
    let labels = details(connection, id).await?.config.labels;
    let Some((directory, name)) = labels.get(labels::LEASE_FILE).and_then(|at| at.rsplit_once('/'))
    else {
        return Ok(());
    };
    let content = Some(Bytes::from(Uuid::new_v4().to_string()));
    let file = Placed { path: name.to_owned(), mode: 0o644, content };
    connection.put_archive(id, directory, archive(&[file], UserIds::default())?).await
}

async fn details(connection: &EngineConnection, id: &str) -> Result<ContainerDetails, Error> {
    connection.get(&format!("/containers/{}/json", encoded(id)), &[]).await
}

/// Packs files for a user.
fn archive(files: &[Placed], owner: UserIds) -> io::Result<Bytes> {
    let mut builder = tar::Builder::new(Vec::new());
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    for file in files {
        let content = file.content.clone().unwrap_or_default();
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(match file.content {
            Some(_) => tar::EntryType::Regular,
            None => tar::EntryType::Directory,
        });
        header.set_mode(file.mode);
        header.set_uid(owner.user);
        header.set_gid(owner.group);
        header.set_mtime(now);
        header.set_size(content.len() as u64);
        // An archive has no absolute paths. It is unpacked at the root.
        builder.append_data(&mut header, file.path.trim_start_matches('/'), &content[..])?;
    }
    Ok(builder.into_inner()?.into())
}

/// Returns the user and group that a container's processes run as.
async fn identity(connection: &EngineConnection, id: &str, user: &str) -> Result<UserIds, Error> {
    let (name, group) = match user.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (user, None),
    };
    if name.is_empty() {
        return Ok(UserIds::default());
    }
    let users = table(connection, id, USERS).await?;
    let groups = match group {
        Some(_) => table(connection, id, GROUPS).await?,
        None => String::new(),
    };
    identity_in(name, group, &users, &groups).ok_or_else(|| {
        let message = format!("the image's user `{user}` is not among its users in {USERS}");
        Error::DockerResponseServerError { status_code: 400, message }
    })
}

/// Reads a table of users or groups. A missing one is empty.
async fn table(connection: &EngineConnection, id: &str, path: &str) -> Result<String, Error> {
    let Some(archive) = connection.get_archive(id, path).await? else { return Ok(String::new()) };
    let mut archive = tar::Archive::new(Cursor::new(archive));
    let mut content = Vec::new();
    if let Some(entry) = archive.entries()?.next() {
        entry?.take(TABLE_LIMIT).read_to_end(&mut content)?;
    }
    Ok(String::from_utf8_lossy(&content).into_owned())
}

/// Finds a user by name or number, and its group.
fn identity_in(name: &str, group: Option<&str>, users: &str, groups: &str) -> Option<UserIds> {
    let row = row_of(users, name);
    let number = |row: &Vec<&str>, place: usize| row.get(place)?.parse().ok();
    let user = row.as_ref().and_then(|row| number(row, 2)).or_else(|| name.parse().ok())?;
    let group = match group {
        Some(group) => {
            row_of(groups, group).and_then(|row| number(&row, 2)).or_else(|| group.parse().ok())?
        }
        None => row.as_ref().and_then(|row| number(row, 3)).unwrap_or_default(),
    };
    Some(UserIds { user, group })
}

/// Returns the row of a name or a number in a table.
fn row_of<'a>(table: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let rows = || table.lines().map(|line| line.split(':').collect::<Vec<_>>());
    rows()
        .find(|row| row.first() == Some(&name))
        .or_else(|| rows().find(|row| row.get(2) == Some(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnode:x:1000:1001::/home/node:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nstaff:x:50:\n";

    #[test]
    fn users_are_found_by_name_and_by_number() {
        let found = |name, group| {
            identity_in(name, group, PASSWD, GROUP).map(|found| (found.user, found.group))
        };
        assert_eq!(found("node", None), Some((1000, 1001)));
        assert_eq!(found("1000", None), Some((1000, 1001)));
        assert_eq!(found("node", Some("staff")), Some((1000, 50)));
        assert_eq!(found("4000", Some("70")), Some((4000, 70)));
        assert_eq!(found("4000", None), Some((4000, 0)));
        assert_eq!(found("nobody", None), None);
        assert_eq!(found("node", Some("nogroup")), None);
    }

    #[test]
    fn an_archive_holds_what_is_placed_for_its_owner() {
        let files = [
            Placed { path: "/.creel".to_owned(), mode: 0o700, content: None },
            Placed { path: "/.creel/x".to_owned(), mode: 0o755, content: Some("text".into()) },
        ];
        let packed = archive(&files, UserIds { user: 7, group: 8 }).unwrap();
        let mut archive = tar::Archive::new(Cursor::new(packed));
        let mut seen = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (7, 8));
            let path = entry.path().unwrap().display().to_string();
            seen.push((path, header.mode().unwrap(), text));
        }
        let expected = [(".creel", 0o700, ""), (".creel/x", 0o755, "text")];
        let expected = expected.map(|(path, mode, text)| (path.to_owned(), mode, text.to_owned()));
        assert_eq!(seen, expected);
    }
}
