package flags

import (
	"slices"
	"strings"
	"testing"
)

func TestReadsCores(t *testing.T) {
	flags, err := read("127.0.0.1:7000", "2,4-6", 4096)
	if err != nil || !slices.Equal(flags.Cores, []int{2, 4, 5, 6}) || flags.Threads() != 4 {
		t.Fatal(flags, err)
	}
}

func TestNamesTheMistake(t *testing.T) {
	for _, list := range []string{"x", "1-", "3-2", "0,", "-1"} {
		if _, err := parseCores(list); err == nil || !strings.Contains(err.Error(), "list of cores") {
			t.Error(list, err)
		}
	}
	if _, err := read("", "", 1); err == nil {
		t.Error("no address")
	}
	if _, err := read("127.0.0.1:1", "", 0); err == nil {
		t.Error("no size")
	}
}
