//! A job whose processes have certificates: who is kept out, and what a rotation costs.

use super::*;
use sluice_rpc::tls::authority::Authority;
use sluice_rpc::tls::{AUTHORITY_FILE, CERTIFICATE_FILE, CertificateProblem, Credentials, KEY_FILE, Role};

const LIFE: TimeSpan = TimeSpan::from_secs(600);

fn authority() -> Authority {
    Authority::new("1", edge::now(), LIFE).unwrap()
}

fn issue(authority: &Authority, role: Role) -> Option<Arc<Tls>> {
    let issued = authority.issue(role, edge::now(), LIFE).unwrap();
    Some(Arc::new(Tls::from_credentials(&issued).unwrap()))
}

async fn connect(cluster: &Cluster, tls: Option<Arc<Tls>>) -> Result<ControlClient, ControlError> {
    within(ControlClient::connect(&cluster.rpc.to_string(), tls.as_ref())).await
}

/// Whether this client can do anything at all.
async fn why_refused(cluster: &Cluster, tls: Option<Arc<Tls>>) -> String {
    let client = match connect(cluster, tls).await {
        Ok(client) => client,
        Err(error) => return error.to_string(),
    };
    let refused = client.describe().await.expect_err("may not know whose it is");
    client.watch(&job_id(), Generation(1)).await.err().expect("may not watch");
    client.execute(Generation(1), "stop", &Command::Cancel).await.expect_err("may not stop");
    refused.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_can_neither_stop_a_job_nor_register() {
    let sink = Collected::default();
    let storage = store::open_storage(&options(None)).unwrap();
    let (own, other) = (authority(), authority());
    let job_manager = issue(&own, Role::JobManager);
    let cluster = start_cluster_on(storage, program(Some(20_000), &sink), options(None), job_manager).await;

    why_refused(&cluster, None).await;
    let reason = why_refused(&cluster, issue(&other, Role::Controller)).await;
    assert!(reason.contains("of another job"), "{reason}");
    for role in [Role::TaskManager, Role::JobManager] {
        let reason = why_refused(&cluster, issue(&own, role)).await;
        assert!(reason.contains("PermissionDenied") && reason.contains(role.name()), "{reason}");
    }
    for stranger in [None, issue(&other, Role::TaskManager), issue(&own, Role::Client), issue(&own, Role::Controller)] {
        assert!(within(cluster.start_task_manager_with("stranger", stranger)).await.is_err());
    }

    let client = connect(&cluster, issue(&own, Role::Client)).await.unwrap();
    assert_eq!(client.describe().await.unwrap(), (job_id(), Generation(1)));
    for name in ["tm-0", "tm-1"] {
        within(cluster.start_task_manager_with(name, issue(&own, Role::TaskManager))).await.unwrap();
    }
    assert_ended(&within(cluster.record).await.unwrap(), ExitKind::Finished);
    assert_eq!(sink.last_values(), expected());
}

/// As the kubelet does: the whole set at once, by a link that changes its aim.
fn write(directory: &Path, version: u32, credentials: &Credentials) {
    let set = directory.join(format!("..{version}"));
    std::fs::create_dir_all(&set).unwrap();
    let Credentials { authority, certificate, key } = credentials;
    for (name, text) in [(AUTHORITY_FILE, authority), (CERTIFICATE_FILE, certificate), (KEY_FILE, key)] {
        std::fs::write(set.join(name), text).unwrap();
        let _ = std::os::unix::fs::symlink(Path::new("..data").join(name), directory.join(name));
    }
    let next = directory.join("..next");
    std::os::unix::fs::symlink(format!("..{version}"), &next).unwrap();
    std::fs::rename(next, directory.join("..data")).unwrap();
}

/// Leaves of two seconds, made anew each second, the authority too; a TaskManager that comes late finds its way, and
/// nothing restarts but for the one that is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_restarts_nothing_and_loses_nothing() {
    let home = directory("rotation");
    let names = [(Role::JobManager, "jobmanager"), (Role::TaskManager, "taskmanager"), (Role::Client, "client")];
    let rotate = {
        let home = home.clone();
        move |version: u32, authority: &Authority, bundle: &str| {
            for (role, name) in names {
                let issued = authority.issue(role, edge::now(), TimeSpan::from_secs(2)).unwrap();
                let issued = Credentials { authority: bundle.to_owned(), ..issued };
                write(&home.join(name), version, &issued);
            }
        }
    };
    let (first, second) = (authority(), authority());
    rotate(0, &first, first.certificate());
    let of = |name: &str| Some(Arc::new(Tls::from_directory(&home.join(name)).unwrap()));
    let (storage, sink) = (directory("rotation-state"), Collected::default());
    let options = options(Some(&storage));
    let cluster = start_cluster_on(
        store::open_storage(&options).unwrap(),
        program(Some(6_000), &sink),
        options,
        of("jobmanager"),
    )
    .await;
    for name in ["tm-0", "tm-1"] {
        within(cluster.start_task_manager_with(name, of("taskmanager"))).await.unwrap();
    }
    let client_tls = of("client");
    let follower = connect(&cluster, client_tls.clone()).await.unwrap();
    let mut statuses = follower.watch(&job_id(), Generation(1)).await.unwrap();
    let both = format!("{}{}", second.certificate(), first.certificate());
    rotate(1, &first, &both);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    rotate(2, &second, &both);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    rotate(3, &second, second.certificate());
    // The certificates of the start have expired; a new handshake uses the new ones, on both sides.
    let late = connect(&cluster, client_tls).await.unwrap();
    assert_eq!(late.describe().await.unwrap(), (job_id(), Generation(1)));
    let mut last = JobStatus::default();
    while let Some(Ok(status)) = within(futures::StreamExt::next(&mut statuses)).await {
        last = status;
    }
    assert_eq!((last.attempt.0, last.state), (1, JobState::Finished), "{last:?}");
    assert_ended(&within(cluster.record).await.unwrap(), ExitKind::Finished);
    assert_eq!(sink.last_values(), expected());
    std::fs::remove_dir_all(home).unwrap();
    std::fs::remove_dir_all(storage).unwrap();
}

/// Also where the server refuses the client's, which comes when the client has long sent its first words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_certificate_lacks_is_told_from_a_connection_that_fails() {
    let (own, other) = (authority(), authority());
    let storage = store::open_storage(&options(None)).unwrap();
    let job_manager = issue(&own, Role::JobManager);
    let cluster = start_cluster_on(storage, program(None, &Collected::default()), options(None), job_manager).await;
    let long_ago = sluice_protocol::Timestamp(edge::now().0 - 86_400_000);
    let old = own.issue(Role::Controller, long_ago, LIFE).unwrap();
    let old = Some(Arc::new(Tls::from_credentials(&old).unwrap()));
    let cases =
        [(old, CertificateProblem::Expired), (issue(&other, Role::Controller), CertificateProblem::NotBelieved)];
    for (tls, expected) in cases {
        // A server that closes at once may take its last word along, so it is asked again, as the controller does.
        let mut errors = Vec::new();
        for _ in 0..20 {
            errors.push(match connect(&cluster, tls.clone()).await {
                Ok(client) => client.describe().await.expect_err("may not know whose it is"),
                Err(error) => error,
            });
        }
        let told =
            |error: &ControlError| matches!(error, ControlError::Certificate { problem, .. } if *problem == expected);
        let untold = |error: &ControlError| matches!(error, ControlError::Unreachable { .. });
        assert!(errors.iter().any(told), "{expected:?}: {errors:?}");
        assert!(errors.iter().all(|error| told(error) || untold(error)), "{expected:?}: {errors:?}");
    }
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let tls = issue(&own, Role::Controller);
    let error = within(ControlClient::connect(&nobody, tls.as_ref())).await.expect_err("nobody is there");
    assert!(matches!(error, ControlError::Unreachable { .. }), "{error:?}");
    cluster.record.abort();
}
