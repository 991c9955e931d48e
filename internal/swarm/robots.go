package swarm

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// robotPatience is how long robots wait for an answer.
const robotPatience = 30 * time.Second

// exportEvery is the time between two rounds of exports.
const exportEvery = 2 * time.Minute

// exportsAfter is when the first round begins, once people are counted.
const exportsAfter = 10 * time.Second

// startRobots lets everybody come who is no person.
func (t *trial) startRobots(pool []*client) {
	if t.Robots > 0 {
		perSecond := t.Robots / t.RobotPage.Seconds()
		n := 0
		t.stream(someRobots, t.RobotsFrom, perSecond, func(d dice) {
			t.mu.Lock()
			n++
			number := n
			t.mu.Unlock()
			robot := &client{address: fmt.Sprintf("101.%d.%d.%d", number/62500%250, number/250%250, number%250+1)}
			if len(pool) > 0 {
				robot = pool[d.IntN(len(pool))]
			}
			t.robot(d, robot)
		})
	}
	if t.Scraper > 0 {
		t.stream(aScraper, t.RobotsFrom, t.Scraper/t.RobotPage.Seconds(), func(d dice) {
			took := d.service(t.RobotPage)
			a := t.page(t.robots, t.greedy, navigation, robotPatience, took)
			t.count(func(r *Result) { r.Scraper.Requests++; r.Scraper.Served += one(a.ok()) })
		})
	}
	for at := t.From + exportsAfter; t.Exports > 0 && at < t.End; at += exportEvery {
		for range t.Exports {
			t.all.Go(func() {
				if !t.sleepUntil(at) {
					return
				}
				a := t.page(t.robots, t.greedy, navigation, t.End, t.Export)
				t.count(func(r *Result) { r.Export.Requests++; r.Export.Served += one(a.ok()) })
			})
		}
	}
}

// pool returns the robots that come again and again.
func (t *trial) pool() (pool []*client) {
	shared := newJar()
	for i := range t.Pool {
		number := i
		if t.Addresses > 0 {
			number %= t.Addresses
		}
		robot := &client{address: fmt.Sprintf("102.0.%d.%d", number/250, number%250+1)}
		if float64(i) < t.Cookies*float64(t.Pool) {
			robot.jar = newJar()
			if t.SharedPass {
				robot.jar = shared
			}
		}
		pool = append(pool, robot)
	}
	return pool
}

const (
	farmers    = 50 // requests at once, so that a site with few workers refuses most
	farmRounds = 50 // after which they give up
)

// farm lets robots that keep cookies come until each of them was given one. Others come
// before them and keep the workers busy.
func (t *trial) farm(pool []*client) error {
	for range farmRounds {
		coming := make([]*client, farmers, farmers+len(pool))
		for i := range coming {
			coming[i] = &client{address: fmt.Sprintf("103.0.0.%d", i+1)}
		}
		for _, robot := range pool {
			if robot.jar != nil && robot.jar.empty() {
				coming = append(coming, robot)
			}
		}
		if len(coming) == farmers {
			return nil
		}
		next := make(chan *client)
		var all sync.WaitGroup
		for range farmers {
			all.Go(func() {
				for robot := range next {
					t.ask(t.ctx, robot, fmt.Sprintf("/page.php?ms=%d", t.RobotPage.Milliseconds()), navigation, robotPatience)
				}
			})
		}
		for _, robot := range coming {
			next <- robot
		}
		close(next)
		all.Wait()
	}
	return errors.New("not every robot was given a cookie before the trial")
}

// robot sends one request. Robots do not come back because of an error.
func (t *trial) robot(d dice, robot *client) {
	took := d.service(t.RobotPage)
	a := t.page(t.robots, robot, navigation, robotPatience, took)
	t.count(func(r *Result) {
		kind := &r.Robot
		if robot.jar != nil {
			kind = &r.Cookie
		}
		kind.Requests++
		kind.Served += one(a.ok())
	})
}
