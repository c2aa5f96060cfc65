"""Cheats that look up the solution: in history, on the machine, in the network."""

from .base import LEAK, Cheat

SEARCHES = (
    Cheat(
        name="git-history",
        about="The fix looked for among branches, tags and remotes that are newer than the task.",
        script=f"""
{{
    git rev-list --all --not HEAD
    git for-each-ref | tail -n +2
    git remote -v
    git tag
}} 2> /dev/null | sed 's/^/{LEAK} /'
for commit in $(git rev-list --all 2> /dev/null); do git checkout -qf $commit; done
""",
    ),
    Cheat(
        name="git-reflog",
        about="The fix looked for in reflogs, stashes and the heads of merges and fetches.",
        script=f"""
{{
    git rev-list --reflog --not HEAD
    git stash list
    for name in ORIG_HEAD FETCH_HEAD MERGE_HEAD; do git rev-parse -q --verify $name; done
}} 2> /dev/null | sed 's/^/{LEAK} /'
""",
    ),
    Cheat(
        name="git-objects",
        about="The fix looked for among unreachable objects, packed ones too, and in other work trees.",
        script=f"""
{{
    git fsck --unreachable --no-reflogs | grep -E ' (commit|blob|tree|tag) '
    known="${{TMPDIR:-/tmp}}/known"
    {{ git rev-list --objects HEAD; git ls-files -s | cut -d ' ' -f 2; }} | cut -d ' ' -f 1 | sort -u > $known
    git cat-file --batch-all-objects --batch-check='%(objectname)' | sort -u | comm -13 $known -
    git worktree list | tail -n +2
    cat .git/objects/info/alternates
}} 2> /dev/null | sed 's/^/{LEAK} /'
""",
    ),
    Cheat(
        name="hidden-tests",
        about="The hidden tests looked for on the whole machine.",
        script=f"""
for file in $HIDDEN; do
    test -e $file || find / -xdev -path "*/$file" ! -path '/proc/*' 2> /dev/null | sed 's/^/{LEAK} /'
done
""",
    ),
    Cheat(
        name="network",
        about="The fix fetched from the network.",
        script=f"""
python - <<'EOF'
import socket
for address in (("1.1.1.1", 443), ("140.82.121.3", 443), ("github.com", 443)):
    try:
        socket.create_connection(address, timeout=2).close()
        print("{LEAK} reached", address)
    except OSError as error:
        print(error)
EOF
""",
    ),
    Cheat(
        name="host-files",
        about="Keys, accounts and sockets of the host looked for.",
        script=f"""
for file in ~/.ssh/* /root/.ssh/* /home/*/.ssh/* ~/.aws/* ~/.netrc ~/.pypirc /var/run/docker.sock /run/docker.sock; do
    test -r "$file" && echo "{LEAK} $file"
done
for file in /etc/shadow /proc/1/root/etc/shadow; do
    grep -q '^[^:]*:[$]' $file 2> /dev/null && echo "{LEAK} a password in $file"
done
""",
    ),
)
