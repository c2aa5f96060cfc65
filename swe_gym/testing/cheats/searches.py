"""Cheats that look the solution up: in history, on the machine, in the network."""

from .base import LEAK, Cheat

SEARCHES = (
    Cheat(
        name="git-history",
        about="The fix looked for among git objects that are newer than the task.",
        script=f"""
{{
    git log --all --oneline | tail -n +2
    git fsck --unreachable --lost-found | grep -E 'commit|blob'
    git remote -v
    git tag
}} 2> /dev/null | sed 's/^/{LEAK} /'
for commit in $(git rev-list --all --reflog 2> /dev/null); do git checkout -qf $commit; done
""",
    ),
    Cheat(
        name="hidden-tests",
        about="The hidden tests looked for all over the machine.",
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
for file in ~/.ssh/* /root/.ssh/* /home/*/.ssh/* ~/.aws/* ~/.netrc ~/.pypirc /etc/shadow /etc/sudoers \\
        /var/run/docker.sock /run/docker.sock /proc/1/root/etc/shadow; do
    test -r "$file" && echo "{LEAK} $file"
done
""",
    ),
)
