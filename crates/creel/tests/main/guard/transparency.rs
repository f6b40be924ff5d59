//! The docker CLI behind a guard: each script is run without it and with it, and must print
//! the same, say the same and end the same.

use super::scene::Scene;

#[test]
fn containers_run_with_the_same_output_and_exit_code() {
    let scene = Scene::set_up();
    scene.assert_same("docker run --rm creel-test sh -c 'echo out; echo err >&2; exit 7'");
    // The end of standard input reaches the container, and what it says after that comes back.
    scene.assert_same("printf 'one two' | docker run --rm -i creel-test sh -c 'wc -c; echo after'");
    scene.assert_same("yes | head -c 3000000 | docker run --rm -i creel-test cat | cksum");
    scene.assert_same(
        "docker run --rm -i creel-test sh -c 'cat >/dev/null; echo got the end' </dev/null",
    );
    scene.assert_same("docker run --rm creel-test sh -c 'kill -9 $$'");
    scene.assert_same("docker run --rm --name fast creel-test true; docker inspect fast");
    scene.assert_same("docker run --rm creel-test /no/such/program");
}

#[test]
fn running_containers_answer_in_the_same_way() {
    let scene = Scene::set_up();
    let start = "docker run -d --init --name it creel-test sleep 1000 >/dev/null\n";
    for script in [
        "docker exec it sh -c 'echo out; echo err >&2; exit 3'",
        "printf abc | docker exec -i it sh -c 'cat; echo; echo end'",
        "docker exec -d it touch /made; docker exec it sh -c 'until [ -e /made ]; do :; done; ls /made'",
        "docker kill it; docker wait it",
        "echo text >from; docker cp from it:/to; docker exec it cat /to; docker cp it:/to back; cat back",
        "mkdir -p tree/a; echo 1 >tree/a/b; docker cp tree it:/tmp/; docker cp it:/tmp/tree - | tar -t",
        "docker rename it that; docker inspect -f '{{.Name}} {{.State.Status}}' that",
        "docker top it -o pid,comm | tail -n 1 | cut -c 9-; docker diff it; docker port it",
        "docker update --memory 64m --memory-swap 64m it; docker inspect -f '{{.HostConfig.Memory}}' it",
        "docker pause it; docker inspect -f '{{.State.Status}}' it; docker unpause it",
        "docker stats --no-stream --format '{{.Name}}' it",
        "docker stop it; docker start it; docker restart -t 0 it; docker ps --format '{{.Names}}'",
        "docker export it | tar -t bin/sh; docker ps -a --format '{{.Names}}: {{.Image}}'",
    ] {
        scene.assert_same(&format!("{start}{script}"));
    }
}

#[test]
fn streams_follow_until_their_end() {
    let scene = Scene::set_up();
    scene.assert_same(
        "docker run -d --name slow creel-test \
         sh -c 'for i in 1 2 3 4 5; do echo $i; sleep 0.2; done' >/dev/null\n\
         docker logs -f slow; docker logs --tail 2 slow; docker wait slow",
    );
    // Its input stays open: this engine drops the output of one whose input has ended.
    scene.assert_same(
        "docker run -d -i --name echo creel-test sh -c 'read word; echo got $word; exit 4' >/dev/null\n\
         (sleep 0.3; echo hello; sleep 1) | docker attach echo; docker inspect -f '{{.State.ExitCode}}' echo",
    );
    // A signal to an attached client is passed on to the container.
    scene.assert_same(
        "docker run --name trap creel-test \
         sh -c 'trap \"echo trapped; exit 9\" TERM; echo ready; while :; do sleep 0.1; done' >said &\n\
         client=$!; until grep -q ready said; do sleep 0.05; done\n\
         kill -TERM $client; wait $client; echo $?; cat said",
    );
    scene.assert_same(
        "since=$(date +%s); docker run --name told creel-test true; docker rm told >/dev/null\n\
         docker events --since $since --until $(($(date +%s) + 1)) --filter container=told \
         --format '{{.Action}} {{.Actor.Attributes.name}}'",
    );
}

#[test]
fn images_are_built_and_moved_in_the_same_way() {
    let scene = Scene::set_up();
    let files = "mkdir -p context; echo text >context/file\n\
        printf 'FROM creel-test\\nARG WORD\\nCOPY file /file\\nRUN echo $WORD >/word\\n\
        VOLUME /data\\nCMD cat /file /word\\n' >context/Dockerfile\n";
    let build = "DOCKER_BUILDKIT=0 docker build --no-cache --build-arg WORD=yes";
    scene.assert_same(&format!("{files}{build} -q -t built context; docker run --rm built"));
    scene.assert_same(&format!(
        "{files}tar -c -C context . | {build} -q -t a:1 -t b:2 -; docker run --rm b:2; \
         docker image inspect -f '{{{{.RepoTags}}}}' a:1"
    ));
    // Standard output has one line more: the container of the failed step is removed.
    let failing = "printf 'FROM creel-test\\nRUN echo 1\\nRUN exit 5\\n'";
    scene.assert_same(&format!("{failing} | DOCKER_BUILDKIT=0 docker build - >/dev/null"));
    scene.assert_same(
        "printf 'FROM nosuch:image\\n' | DOCKER_BUILDKIT=0 docker build - 2>&1 | head -n 2",
    );
    scene.assert_same(
        "docker tag creel-test other:2; docker save other:2 creel-test >all.tar; docker rmi other:2\n\
         docker load <all.tar; docker run --rm other:2 echo loaded; gzip -f all.tar\n\
         docker rmi other:2; docker load -i all.tar.gz",
    );
    scene.assert_same(
        "docker run --name base creel-test sh -c 'echo kept >/kept'\n\
         docker commit -m why -c 'CMD cat /kept' base snap:1 >/dev/null; docker run --rm snap:1\n\
         docker export base | docker import -c 'CMD cat /kept' - flat >/dev/null; docker run --rm flat\n\
         docker images --format '{{.Repository}}:{{.Tag}}' | sort; docker history -q flat | wc -l",
    );
    scene
        .assert_same("docker pull nosuch.invalid/thing 2>&1 | sed 's/dial.*//'; docker rmi nosuch");
}

#[test]
fn networks_and_volumes_show_the_same() {
    let scene = Scene::set_up();
    scene.assert_same(
        "docker network create --label a=b --subnet 10.99.0.0/24 net >/dev/null\n\
         docker network inspect -f '{{.Name}} {{(index .IPAM.Config 0).Subnet}} {{index .Labels \"a\"}}' net\n\
         docker run -d --init --name peer --network net creel-test sleep 1000 >/dev/null\n\
         docker run --rm --network net creel-test nslookup peer | sort -u\n\
         docker network disconnect net peer; docker network connect --alias p net peer\n\
         docker network rm net; docker rm -f peer; docker network rm net",
    );
    scene.assert_same(
        "docker volume create --label a=b data; docker run --rm -v data:/d creel-test touch /d/x\n\
         docker run --rm --mount source=data,target=/d,readonly creel-test sh -c 'ls /d; touch /d/y'\n\
         docker volume ls -q --filter label=a=b; docker volume rm data; docker volume rm data",
    );
    scene.assert_same(
        "docker network create twin >/dev/null; docker network create twin 2>&1 | wc -l\n\
         docker network ls --filter name=twin --format '{{.Name}}'",
    );
}

#[test]
fn errors_are_the_engines_own_words() {
    let scene = Scene::set_up();
    for script in [
        "docker inspect nothing",
        "docker rm nothing",
        "docker start nothing; docker exec nothing true; docker logs nothing",
        "docker run --name 'a b' creel-test true",
        "docker run --name twice creel-test true; docker run --name twice creel-test true",
        "docker run --network nothing creel-test true",
        "docker run -v 'bad?name:/x' creel-test true",
        "docker run -v name:relative creel-test true",
        "docker run --mount type=bind,source=/no/such/place,target=/x creel-test true",
        "docker run -v unused:/x creel-test /no/such/program; docker volume ls -q",
        "docker network create host; docker network rm bridge; docker volume create 'a b'",
        "docker build /no/such/place; docker load -i /no/such/file; docker --no-such-flag",
        "docker version -f '{{.Server.Version}} {{.Server.APIVersion}}'; docker info -f '{{.Driver}}'",
    ] {
        scene.assert_same(script);
    }
}
